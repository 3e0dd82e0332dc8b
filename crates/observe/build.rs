//! Compiles the BPF program where the feature `bpf` asks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "bpf")]
    bpf::build();
}

#[cfg(feature = "bpf")]
mod bpf {
    use std::env;
    use std::path::PathBuf;

    const SOURCE: &str = "src/bpf/wakes.bpf.c";

    pub fn build() {
        println!("cargo:rerun-if-changed={SOURCE}");
        let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("wakes.bpf.o");
        // Debian and Ubuntu keep <asm/types.h> in a folder per architecture, where clang's BPF target does not look.
        let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
        libbpf_cargo::SkeletonBuilder::new()
            .source(SOURCE)
            .clang_args([format!("-I/usr/include/{arch}-linux-gnu")])
            .obj(out)
            .build()
            .unwrap_or_else(|error| panic!("{SOURCE} does not compile: {error:?}"));
    }
}
