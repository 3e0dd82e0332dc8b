//! Compiles the BPF programs where the feature `bpf` asks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "bpf")]
    bpf::build();
}

#[cfg(feature = "bpf")]
mod bpf {
    use std::env;
    use std::path::PathBuf;

    pub fn build() {
        let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
        // Debian and Ubuntu keep <asm/types.h> in a folder per architecture, where clang's BPF target does not look.
        let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target");
        for name in ["lock_waits", "pause_exits"] {
            let source = format!("src/bpf/{name}.bpf.c");
            println!("cargo:rerun-if-changed={source}");
            libbpf_cargo::SkeletonBuilder::new()
                .source(&source)
                .clang_args([format!("-I/usr/include/{arch}-linux-gnu")])
                .obj(out.join(format!("{name}.bpf.o")))
                .build()
                .unwrap_or_else(|error| panic!("{source} does not compile: {error:?}"));
        }
    }
}
