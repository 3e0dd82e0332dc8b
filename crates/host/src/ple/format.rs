//! Where the fields of KVM's tracepoints lie in this kernel: tracefs says (Documentation/trace/events.rst, section 4).

use super::PleError;
use std::fs;
use std::path::Path;

const EVENTS: &str = "sys/kernel/tracing/events/kvm";

/// Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    exit_reason: u32,
    isa: u32,
    new_window: u32,
    old_window: u32,
}

impl Fields {
    /// What tracefs below `root` says.
    ///
    /// # Errors
    /// Where it is not mounted or may not be read, where KVM has no such tracepoints, or others than are known.
    pub fn read(root: &Path) -> Result<Self, PleError> {
        let [exit, window] = ["kvm_exit", "kvm_ple_window_update"].map(|event| describe(root, event));
        let ((exit_place, exit), (window_place, window)) = (exit?, window?);
        Ok(Self {
            exit_reason: offset(&exit_place, &exit, "exit_reason")?,
            isa: offset(&exit_place, &exit, "isa")?,
            new_window: offset(&window_place, &window, "new")?,
            old_window: offset(&window_place, &window, "old")?,
        })
    }

    /// As the program expects them.
    pub fn words(&self) -> [u32; 4] {
        [self.exit_reason, self.isa, self.new_window, self.old_window]
    }
}

fn missing(place: &str, why: impl ToString) -> PleError {
    let advice =
        "it takes root, tracefs (`mount -t tracefs tracefs /sys/kernel/tracing`) and a loaded kvm_intel or kvm_amd";
    PleError::NoTracepoint { place: place.to_owned(), why: why.to_string(), advice }
}

fn describe(root: &Path, event: &str) -> Result<(String, String), PleError> {
    let path = root.join(EVENTS).join(event).join("format");
    let place = path.display().to_string();
    let text = fs::read_to_string(&path).map_err(|error| missing(&place, error))?;
    Ok((place, text))
}

/// The offset of a field of four bytes.
fn offset(place: &str, description: &str, name: &str) -> Result<u32, PleError> {
    let of_line = |line: &str| {
        let mut parts = line.trim().split(';').map(str::trim);
        let declared = parts.next()?.strip_prefix("field:")?;
        (declared.rsplit(' ').next()? == name).then_some(())?;
        let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
        (parts.next()? == "size:4").then_some(offset)
    };
    let found = description.lines().find_map(of_line);
    found.ok_or_else(|| missing(place, format!("it has no field `{name}` of 4 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: &str = "name: kvm_exit\nID: 1473\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long guest_rip;\toffset:16;\tsize:8;\tsigned:0;\n\
        \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n\nprint fmt: \"vcpu %u reason %s\", REC->vcpu_id\n";
    const WINDOW: &str = "\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int new;\toffset:12;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int old;\toffset:16;\tsize:4;\tsigned:0;\n";

    fn tree(exit: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (event, text) in [("kvm_exit", exit), ("kvm_ple_window_update", WINDOW)] {
            let directory = root.path().join(EVENTS).join(event);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("format"), text).unwrap();
        }
        root
    }

    #[test]
    fn fields_are_found_where_linux_6_1_has_them() {
        assert_eq!(Fields::read(tree(EXIT).path()).unwrap().words(), [8, 24, 12, 16]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = Fields::read(Path::new("/nowhere")).unwrap_err().to_string();
        let expected = "/nowhere/sys/kernel/tracing/events/kvm/kvm_exit/format cannot be read: No such file";
        assert!(error.starts_with(expected), "{error}");
        let error = Fields::read(tree("\tfield:u64 isa;\toffset:8;\tsize:8;\n").path()).unwrap_err().to_string();
        assert!(error.contains("it has no field `exit_reason` of 4 bytes; it takes root"), "{error}");
    }
}
