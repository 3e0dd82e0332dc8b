//! How often the running processes pass a place in a program: uprobes that only count (perf_event_open(2), the PMU
//! `uprobe`; Documentation/trace/uprobetracer.rst). They are gone with their descriptors, however this process ends.

use muster_model::CpuSet;
use object::elf::{PT_LOAD, SHT_NOTE};
use object::read::elf::{ElfFile64, NoteIterator, ProgramHeader, SectionHeader};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Counters of one place or several, on every CPU.
#[derive(Debug)]
pub struct Calls(Vec<File>);

/// Where a probe goes, in bytes from the beginning of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Site {
    offset: u64,
    /// A counter in the program that says how many watch; 0 where there is none.
    semaphore: u64,
}

type Elf<'data> = ElfFile64<'data, Endianness>;

impl Calls {
    /// Counts the calls of `function` in the file `program`.
    ///
    /// # Errors
    /// In words: the file is no program, has no such function, or may not be probed.
    pub fn of_function(program: &Path, function: &str) -> Result<Self, String> {
        let data = fs::read(program).map_err(|error| error.to_string())?;
        let elf = parse(&data)?;
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let mut named = symbols.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
        let found = named.find(|symbol| symbol.name() == Ok(function)).ok_or_else(|| {
            format!("the program has no function `{function}` in its symbol tables; it may be stripped, or the function inlined")
        })?;
        let offset = file_offset(&elf, found.address()).ok_or("the function lies outside the file")?;
        Self::at(program, &[Site { offset, semaphore: 0 }])
    }

    /// Counts how often the static probe `provider:name` (SystemTap's `sys/sdt.h`) in the file `program` is passed.
    ///
    /// # Errors
    /// As [`Calls::of_function`].
    pub fn of_static_probe(program: &Path, provider: &str, name: &str) -> Result<Self, String> {
        let data = fs::read(program).map_err(|error| error.to_string())?;
        let elf = parse(&data)?;
        let sites = static_probes(&elf, &data, provider, name);
        if sites.is_empty() {
            return Err(format!(
                "the program has no static probe `{provider}:{name}`; `readelf -n` lists those it has"
            ));
        }
        Self::at(program, &sites)
    }

    fn at(program: &Path, sites: &[Site]) -> Result<Self, String> {
        let text = |path: &str| fs::read_to_string(path).ok();
        let pmu = text("/sys/bus/event_source/devices/uprobe/type").and_then(|text| text.trim().parse().ok());
        let pmu: u32 = pmu.ok_or("this kernel has no uprobes (CONFIG_UPROBE_EVENTS)")?;
        let online: Option<CpuSet> = text("/sys/devices/system/cpu/online").and_then(|text| text.trim().parse().ok());
        let online = online.ok_or("the kernel does not say which CPUs are online")?;
        let program = fs::canonicalize(program).map_err(|error| error.to_string())?;
        let program = CString::new(program.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let places = sites.iter().flat_map(|site| online.iter().map(move |cpu| (site, cpu)));
        places.map(|(site, cpu)| open(pmu, &program, *site, cpu)).collect::<io::Result<_>>().map(Self).map_err(refusal)
    }

    /// How often so far; `None` when a counter cannot be read.
    pub fn read(&self) -> Option<u64> {
        let one = |mut counter: &File| {
            let mut count = [0; 8];
            counter.read_exact(&mut count).ok().map(|()| u64::from_ne_bytes(count))
        };
        self.0.iter().map(one).sum()
    }
}

fn refusal(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "counting calls takes root, or the capability CAP_PERFMON".to_owned(),
        _ => format!("the kernel refuses the probe: {error}"),
    }
}

fn parse(data: &[u8]) -> Result<Elf<'_>, String> {
    Elf::parse(data).map_err(|error| format!("it is no 64-bit ELF program: {error}"))
}

/// Where in the file the byte at `address` lies.
fn file_offset(elf: &Elf, address: u64) -> Option<u64> {
    let endian = elf.endian();
    elf.elf_program_headers().iter().filter(|segment| segment.p_type(endian) == PT_LOAD).find_map(|segment| {
        let inside = address.checked_sub(segment.p_vaddr(endian))?;
        (inside < segment.p_filesz(endian)).then(|| segment.p_offset(endian) + inside)
    })
}

/// The sites of a static probe: notes named `stapsdt` with three addresses (the probe, what `.stapsdt.base` was linked
/// at, the semaphore) and three strings (provider, name, arguments).
fn static_probes(elf: &Elf, data: &[u8], provider: &str, name: &str) -> Vec<Site> {
    let endian = elf.endian();
    let base = elf.section_by_name(".stapsdt.base").map(|section| section.address());
    let notes = elf.elf_section_table().iter().filter(|section| section.sh_type(endian) == SHT_NOTE);
    let notes = notes.filter_map(|section| section.notes(endian, data).ok().flatten());
    let site = |description: &[u8]| {
        let (addresses, strings) = description.split_at_checked(24)?;
        let mut strings = strings.split(|&byte| byte == 0);
        let is_wanted = strings.next()? == provider.as_bytes() && strings.next()? == name.as_bytes();
        let word = |index: usize| Some(u64::from_ne_bytes(addresses.get(8 * index..8 * index + 8)?.try_into().ok()?));
        // A program that was prelinked has been moved since.
        let moved = base.map_or(0, |base| base.wrapping_sub(word(1).unwrap_or(base)));
        let offset = |address: u64| file_offset(elf, address.wrapping_add(moved));
        let semaphore = word(2).filter(|&address| address != 0);
        let semaphore = semaphore.map_or(Some(0), offset)?;
        is_wanted.then_some(Site { offset: offset(word(0)?)?, semaphore })
    };
    notes.flat_map(descriptions).filter_map(site).collect()
}

fn descriptions<'data>(
    mut notes: NoteIterator<'data, object::elf::FileHeader64<Endianness>>,
) -> impl Iterator<Item = &'data [u8]> {
    std::iter::from_fn(move || notes.next().ok().flatten())
        .filter(|note| note.name() == b"stapsdt")
        .map(|note| note.desc())
}

/// The first 72 bytes of the kernel's `struct perf_event_attr` (PERF_ATTR_SIZE_VER1), as far as the PMU `uprobe` uses it.
#[repr(C)]
struct Attributes {
    kind: u32,
    size_bytes: u32,
    /// From bit 32 on: where the semaphore lies in the file.
    config: u64,
    unused: [u64; 4],
    also_unused: [u32; 2],
    path: u64,
    offset: u64,
}

/// perf_event_open(2).
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// A counter of one site on one CPU, over all processes.
fn open(pmu: u32, program: &CString, site: Site, cpu: usize) -> io::Result<File> {
    let attributes = Attributes {
        kind: pmu,
        size_bytes: size_of::<Attributes>() as u32,
        config: site.semaphore << 32,
        unused: [0; 4],
        also_unused: [0; 2],
        path: program.as_ptr() as u64,
        offset: site.offset,
    };
    let (every_process, no_group) = (-1, -1);
    // SAFETY: the kernel reads as many bytes of `attributes` as it says it has, and the path that it points to; both
    // live until the call returns.
    let descriptor = unsafe {
        let attributes = &raw const attributes;
        libc::syscall(libc::SYS_perf_event_open, attributes, every_process, cpu, no_group, PERF_FLAG_FD_CLOEXEC)
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, and nobody else owns it.
    Ok(unsafe { File::from_raw_fd(descriptor as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_counted_is_said() {
        let own = std::env::current_exe().unwrap();
        let refusal = |program: &Path, function: &str| Calls::of_function(program, function).unwrap_err();
        assert!(refusal(&own, "no such function").contains("no function `no such function`"));
        assert!(refusal(Path::new("/proc/version"), "f").contains("no 64-bit ELF program"));
        assert!(refusal(Path::new("/no/such/program"), "f").contains("No such file"));
        let refusal = Calls::of_static_probe(&own, "nobody", "nothing").unwrap_err();
        assert!(refusal.contains("no static probe `nobody:nothing`"), "{refusal}");
    }

    #[test]
    fn half_a_program_is_no_program() {
        let whole = fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in (0..4096).step_by(7) {
            if let Ok(elf) = parse(&whole[..length]) {
                assert!(elf.symbols().next().is_none() && static_probes(&elf, &whole[..length], "a", "b").is_empty());
            }
        }
    }
}
