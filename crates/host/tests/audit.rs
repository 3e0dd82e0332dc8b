//! What is said of recorded hosts.

mod trees;

use muster_host::{Tree, facts};
use muster_model::host::{HostAudit, Severity, Vmm};
use proptest::prelude::*;
use std::fmt::Write;

fn audit_of(tree: &str) -> HostAudit {
    let root = trees::make(tree);
    muster_host::audit(&Tree::at(root.path()).expect("a tree"))
}

/// Everything said, a line each.
fn told(audit: &HostAudit) -> String {
    let mut text = String::new();
    for finding in &audit.findings {
        let _infallible = writeln!(
            text,
            "{} {} {}: {}",
            finding.severity.name(),
            finding.knob.name(),
            finding.subject,
            finding.found
        );
        for setting in &finding.settings {
            let _infallible = writeln!(text, "    sets {setting}");
        }
    }
    audit.unreadable.iter().for_each(|one| {
        let _infallible = writeln!(text, "unreadable {}: {}", one.path, one.why);
    });
    text
}

#[test]
fn an_intel_host_that_is_overcommitted() {
    insta::assert_snapshot!(told(&audit_of(trees::INTEL)));
}

#[test]
fn an_amd_host_in_good_order() {
    insta::assert_snapshot!(told(&audit_of(trees::AMD)));
}

#[test]
fn all_that_is_said_of_the_intel_host() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&audit_of(trees::INTEL)).expect("JSON"));
}

#[test]
fn a_machine_without_kvm_gets_one_line() {
    for (tree, expected) in [
        (trees::NO_KVM.to_owned(), "there is no /dev/kvm"),
        (trees::with(trees::NO_KVM, &["/proc/cpuinfo = flags : fpu vmx"]), "neither kvm_intel nor kvm_amd is loaded"),
        (trees::with(trees::NO_KVM, &["/proc/cpuinfo = Features : fp asimd"]), "no flags of an x86 CPU"),
        (trees::with(trees::NO_KVM, &["/dev/kvm = a device", "/sys/module/kvm_pvm/parameters/verbose = N"]), "kvm_pvm"),
    ] {
        let audit = audit_of(&tree);
        let why = audit.no_host.expect("no host");
        assert!(why.starts_with("this is no KVM host") && why.contains(expected) && !why.contains('\n'), "{why}");
        assert!(audit.findings.is_empty());
    }
}

#[test]
fn a_recorded_host_is_read_as_it_was() {
    let root = trees::make(trees::INTEL);
    let facts = facts::read(&Tree::at(root.path()).expect("a tree"));
    let names: Vec<_> = facts.vms.iter().map(|vm| (vm.pid, vm.name.as_deref(), vm.vmm, vm.vcpu_count())).collect();
    assert_eq!(names, [(1201, Some("web"), Vmm::Qemu, 4), (1340, Some("db"), Vmm::Qemu, 8)]);
    let db = &facts.vms[1];
    assert_eq!((db.vhost_threads, db.nics[0].queues, db.nics[0].vhost, db.cpu_pm), (2, 4, true, true));
    assert_eq!(db.assigned, ["0000:03:10.0"]);
    assert_eq!(facts.vectors.len(), 8);
    assert_eq!((facts.vectors[0].used, facts.vectors[0].available), (176, 26));
    assert_eq!(facts.interrupts.len(), 9);
    assert_eq!(facts.devices[0].functions[0].group, Some((41, 1)));
    assert!(!facts.kvm.modules.iter().any(|module| module.parameters.is_empty() && module.name == "kvm"));
    assert!(facts.unreadable.is_empty(), "{:?}", facts.unreadable);
}

#[test]
fn names_of_threads_stand_in_for_files_that_are_not_shown() {
    // As to a user who may not look into the process.
    let tree: String =
        trees::INTEL.lines().filter(|line| !line.contains("/fd/")).map(|line| format!("{line}\n")).collect();
    let root = trees::make(&tree);
    let facts = facts::read(&Tree::at(root.path()).expect("a tree"));
    assert_eq!(facts.vms.iter().map(|vm| (vm.pid, vm.vcpu_count())).collect::<Vec<_>>(), [(1201, 4), (1340, 8)]);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let audit = audit_of(trees::AMD);
    assert_eq!(audit.unreadable.len(), 1);
    assert_eq!(audit.unreadable[0].path, "/sys/kernel/debug/irq/domains/VECTOR");
    assert!(audit.findings.iter().any(|finding| finding.subject.contains("effective_affinity_list")));
}

#[test]
fn every_advice_names_its_sources_and_no_gain_is_withheld() {
    for tree in [trees::INTEL, trees::AMD] {
        for finding in audit_of(tree).findings {
            assert!(!finding.sources.is_empty(), "{finding:?}");
            assert!(!finding.gain.as_deref().unwrap_or_default().contains("withheld"), "{finding:?}");
            let does = !finding.settings.is_empty() || finding.by_hand.is_some();
            assert!(finding.severity != Severity::Act || does, "{finding:?}");
        }
    }
}

#[test]
fn equal_trees_give_equal_bytes() {
    let told = |_| serde_json::to_string(&audit_of(trees::INTEL)).expect("JSON");
    let [first, second] = [0, 1].map(told);
    assert_eq!(first, second);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever a file holds, the audit says something or names it, and does not panic.
    #[test]
    fn no_content_breaks_an_audit(spoilt in 0usize..400, content in "[\\x00-\\x7f\u{80}-\u{ff}]{0,60}", intel in any::<bool>()) {
        let tree = if intel { trees::INTEL } else { trees::AMD };
        let root = trees::make(tree);
        let files: Vec<_> = trees::content(root.path()).into_keys().filter(|path| path.is_file()).collect();
        let file = &files[spoilt % files.len()];
        std::fs::remove_file(file).expect("a file of the tree");
        std::fs::write(file, content).expect("a file of the tree");
        let audit = muster_host::audit(&Tree::at(root.path()).expect("a tree"));
        prop_assert!(audit.no_host.is_some() || !audit.findings.is_empty());
    }
}
