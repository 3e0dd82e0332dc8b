//! A KVM host to break: a Linux guest under QEMU's emulator, on an AMD processor with SVM (kvm_amd loads), with an IOMMU
//! and an SR-IOV device. The test itself is the guest's first process and plays scenes there; muster lies beside it.
//! docs/rig.md says what it took.

mod boot;
pub mod guest;
mod kernel;
pub mod kill;
pub mod snapshot;
pub mod vm;

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// How the reason of a scene begins that could not be played.
pub const SKIPPED: &str = "SKIPPED: ";

/// What a scene came to: nothing, or why it failed.
pub type Outcome = Result<(), String>;
/// A scene: its name, and what is played in the guest.
pub type Scene = (&'static str, fn() -> Outcome);

/// The outcomes of all scenes by their names, from one guest for all tests of this program; why there is no guest.
fn played() -> &'static Result<BTreeMap<String, Outcome>, String> {
    static PLAYED: OnceLock<Result<BTreeMap<String, Outcome>, String>> = OnceLock::new();
    PLAYED.get_or_init(|| {
        let (kernel, qemu) = (kernel::find()?, boot::find_qemu()?);
        let mut said = boot::boot(&kernel, &qemu)?;
        if !said.contains(guest::END) {
            // On a loaded machine the emulator loses timer interrupts now and then, and a guest hangs.
            eprintln!("once more: the guest did not come to its end");
            said += &boot::boot(&kernel, &qemu)?;
        }
        Ok(guest::outcomes(&said))
    })
}

/// The body of a test: what its scene came to in the guest. Where there can be no guest, the test is skipped.
///
/// # Panics
/// When the scene failed, or the guest ended before it was played.
pub fn judge(scene: &str) {
    match played() {
        Err(why) => eprintln!("SKIPPED: {scene}: {why}"),
        Ok(outcomes) => match outcomes.get(scene) {
            Some(Ok(())) => {}
            Some(Err(why)) => match why.strip_prefix(SKIPPED) {
                Some(why) => eprintln!("{SKIPPED}{scene}: {why}"),
                None => panic!("in the guest: {why}"),
            },
            None => panic!("the guest ended before {scene} was played; it played {:?}", outcomes.keys()),
        },
    }
}
