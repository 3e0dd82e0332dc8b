//! make: compiles a tree of C files with as many processes as there are cores. Below scale 1 the tree is generated; at
//! scale 1 it is the distribution's kernel source in its smallest configuration (`make tinyconfig`).

use crate::SuiteError;
use crate::platform::{Finished, Job, forget_outer_make};
use crate::programs::digest::splitmix;
use crate::store::Store;
use crate::suite::{Prepared, Reading, Ready};
use muster_model::results::SuiteMeasure;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io};

const NAME: &str = "make";
/// C files that a generated tree would have at scale 1, and the fewest.
const FULL_FILES: f64 = 600.0;
const LEAST_FILES: usize = 4;
/// Functions of a generated file.
const FUNCTIONS: u64 = 20;
/// Where Debian's packages put the kernel's source.
const SOURCES: &str = "/usr/src";
/// Whatever a kernel names itself after must be the same in every build, or no two are equal.
const KERNEL_IDENTITY: [&str; 4] = [
    "KBUILD_BUILD_TIMESTAMP=1970-01-01",
    "KBUILD_BUILD_USER=muster",
    "KBUILD_BUILD_HOST=muster",
    "KBUILD_BUILD_VERSION=1",
];

/// Packages with what a build starts: of a generated tree, and what of a kernel besides.
const PACKAGES: [&str; 4] = [NAME, "gcc", "libc6-dev", "dash"];
const KERNEL_PACKAGES: [&str; 21] = [
    "bash",
    "bc",
    "bison",
    "coreutils",
    "cpio",
    "diffutils",
    "findutils",
    "flex",
    "gawk",
    "grep",
    "gzip",
    "hostname",
    "kmod",
    "libelf-dev",
    "libssl-dev",
    "mawk",
    "perl",
    "sed",
    "tar",
    "util-linux",
    "xz-utils",
];

/// A tree, and how it is built.
pub struct Make {
    tree: PathBuf,
    kind: Kind,
}

enum Kind {
    Generated,
    Kernel,
}

impl Make {
    /// The tree for a scale, where the tools for it are installed.
    ///
    /// # Errors
    /// When the tree cannot be written.
    pub fn prepare(scale: f64, seed: u64, store: &Store) -> Result<Prepared, SuiteError> {
        if let Some(why) = super::missing(&[(NAME, "make"), ("cc", "gcc")]) {
            return Ok(Prepared::Missing(why));
        }
        let tree = store.fresh_dir("tree")?;
        if scale == 1.0 {
            return Self::prepare_kernel(tree);
        }
        let files = ((FULL_FILES * scale) as usize).max(LEAST_FILES);
        generate(&tree, seed, files).map_err(SuiteError::system(format!("cannot write {}", tree.display())))?;
        Ok(Prepared::Ready(Box::new(Self { tree, kind: Kind::Generated })))
    }

    fn prepare_kernel(tree: PathBuf) -> Result<Prepared, SuiteError> {
        let tools = [("tar", "tar"), ("xz", "xz-utils"), ("flex", "flex"), ("bison", "bison"), ("bc", "bc")];
        if let Some(why) = super::missing(&tools) {
            return Ok(Prepared::Missing(why));
        }
        let Some(source) = kernel_source(Path::new(SOURCES)) else {
            return Ok(Prepared::Missing(format!("the kernel's source is not in {SOURCES} (package linux-source)")));
        };
        helper(Command::new("tar").arg("-xf").arg(source).arg("--strip-components=1").arg("-C").arg(&tree))?;
        helper(Command::new(NAME).args(["-s", "-C"]).arg(&tree).arg("tinyconfig"))?;
        fs::rename(tree.join(".config"), tree.join("tinyconfig"))
            .map_err(SuiteError::system("cannot set the kernel's configuration aside"))?;
        helper(Command::new(NAME).args(["-s", "-C"]).arg(&tree).arg("mrproper"))?;
        Ok(Prepared::Ready(Box::new(Self { tree, kind: Kind::Kernel })))
    }

    /// What a build makes, below its directory.
    fn product(&self) -> &'static str {
        match self.kind {
            Kind::Generated => "program",
            Kind::Kernel => "vmlinux",
        }
    }

    fn packages(&self) -> Vec<String> {
        let more = match self.kind {
            Kind::Generated => &[][..],
            Kind::Kernel => &KERNEL_PACKAGES,
        };
        PACKAGES.iter().chain(more).map(|package| (*package).to_owned()).collect()
    }
}

impl Ready for Make {
    fn measure(&self) -> SuiteMeasure {
        SuiteMeasure::Seconds
    }

    fn job(&self, store: &Store, cores: usize) -> Result<Job, SuiteError> {
        let out = store.fresh_dir("build")?;
        let jobs = format!("-j{cores}");
        let mut argv: Vec<OsString> = [NAME, "-s", jobs.as_str(), "-C"].map(Into::into).to_vec();
        argv.push(self.tree.clone().into());
        let assign = |name: &str| {
            let mut word = OsString::from(name);
            word.push(&out);
            word
        };
        match self.kind {
            Kind::Generated => argv.push(assign("OUT=")),
            Kind::Kernel => {
                fs::copy(self.tree.join("tinyconfig"), out.join(".config"))
                    .map_err(SuiteError::system("cannot copy the kernel's configuration"))?;
                argv.push(assign("O="));
                argv.extend(KERNEL_IDENTITY.map(Into::into));
                argv.push(self.product().into());
            }
        }
        Ok(Job {
            program: NAME.to_owned(),
            argv,
            dir: store.scratch(""),
            cores,
            product: Some(out.join(self.product())),
            needs: vec![self.tree.clone(), out],
            packages: self.packages(),
            ..Job::default()
        })
    }

    fn read(&self, store: &Store, finished: &Finished) -> Result<Reading, SuiteError> {
        store.discard(&store.scratch("build"))?;
        let checksum = finished.product.clone();
        Ok(Reading { value: finished.wall_ns as f64 / 1e9, checksum })
    }

    fn discard(&self, store: &Store) -> Result<(), SuiteError> {
        store.discard(&self.tree)
    }
}

/// Runs a command that makes things ready and is not measured.
fn helper(command: &mut Command) -> Result<(), SuiteError> {
    let failed = |how: String, tail: String| SuiteError::RunFailed { program: NAME.to_owned(), cores: 1, how, tail };
    forget_outer_make(command);
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(format!("could not start {name}: {error}"), String::new()))?;
    if output.status.success() {
        return Ok(());
    }
    let tail = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(failed(format!("could not make its input ready: {name} failed"), tail))
}

/// The newest `linux-source-*.tar.xz`, by name.
fn kernel_source(dir: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_source = |name: &String| name.starts_with("linux-source-") && name.ends_with(".tar.xz");
    let version = |name: &String| -> Vec<u32> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    names.filter(is_source).max_by_key(version).map(|name| dir.join(name))
}

/// Writes a program of so many C files, a header and a Makefile.
fn generate(tree: &Path, seed: u64, files: usize) -> io::Result<()> {
    const HEADER: &str = "#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n";
    const MAKEFILE: &str = "OBJECTS := $(patsubst %.c,$(OUT)/%.o,$(sort $(wildcard *.c)))\n\n\
                            $(OUT)/program: $(OBJECTS)\n\tcc -o $@ $^\n\n\
                            $(OUT)/%.o: %.c all.h\n\tcc -O2 -c -o $@ $<\n";
    fs::write(tree.join("Makefile"), MAKEFILE)?;
    fs::write(tree.join("all.h"), HEADER)?;
    let mut main = String::from("#include \"all.h\"\n");
    for file in 0..files {
        fs::write(tree.join(format!("unit{file}.c")), unit(seed, file))?;
        // Writing to a String cannot fail.
        let _ = writeln!(main, "uint32_t unit{file}(uint32_t);");
    }
    main.push_str("int main(void) {\n    uint32_t x = 1;\n");
    for file in 0..files {
        let _ = writeln!(main, "    x = unit{file}(x);");
    }
    main.push_str("    printf(\"%u\\n\", x);\n    return 0;\n}\n");
    fs::write(tree.join("main.c"), main)
}

/// One C file: functions with a loop, a switch and a table each, and one that calls them all.
fn unit(seed: u64, file: usize) -> String {
    let mut text = String::from("#include \"all.h\"\n");
    for function in 0..FUNCTIONS {
        let draw = splitmix(seed ^ splitmix(file as u64 * FUNCTIONS + function));
        let (a, b, c) = (draw as u16 | 1, (draw >> 16) as u16, (draw >> 32) % 13 + 2);
        let _ = write!(
            text,
            "static uint32_t f{function}(uint32_t x) {{\n    \
             static const uint32_t table[8] = {{{a}, {b}, {c}, 3, 5, 7, 11, 13}};\n    \
             char text[16];\n    \
             for (uint32_t i = 0; i < {c}; i++) {{\n        \
             switch ((x >> i) & 3) {{\n        \
             case 0: x = x * {a}u + i; break;\n        \
             case 1: x ^= table[x & 7] << (i & 15); break;\n        \
             case 2: snprintf(text, sizeof text, \"%u\", x); x += (uint32_t)strlen(text) + {b}u; break;\n        \
             default: x = (x << 5) | (x >> 27);\n        }}\n    }}\n    \
             return x;\n}}\n"
        );
    }
    let _ = writeln!(text, "uint32_t unit{file}(uint32_t x) {{");
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "    x = f{function}(x);");
    }
    text.push_str("    return x;\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_source_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kernel_source(dir.path()), None);
        for name in
            ["linux-source-6.9.tar.xz", "linux-source-6.12.tar.xz", "linux-config-7.0.tar.xz", "linux-source-6.1"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(kernel_source(dir.path()), Some(dir.path().join("linux-source-6.12.tar.xz")));
    }

    #[test]
    fn a_generated_tree_builds_and_depends_on_its_seed() {
        if let Some(why) = super::super::missing(&[("make", "make"), ("cc", "gcc")]) {
            eprintln!("SKIPPED: a_generated_tree_builds_and_depends_on_its_seed: {why}");
            return;
        }
        let build = |seed| {
            let (tree, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            generate(tree.path(), seed, 2).unwrap();
            let out_is = format!("OUT={}", out.path().display());
            helper(Command::new(NAME).args(["-s", "-j2", &out_is, "-C"]).arg(tree.path())).unwrap();
            let ran = Command::new(out.path().join("program")).output().unwrap();
            assert!(ran.status.success());
            String::from_utf8(ran.stdout).unwrap()
        };
        let first = build(1);
        assert!(first.trim().parse::<u32>().is_ok(), "{first}");
        assert_eq!(first, build(1));
        assert_ne!(first, build(2));
    }
}
