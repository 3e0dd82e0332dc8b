//! Formats of procfs, debugfs and command lines.

use muster_host::text;
use proptest::prelude::*;

fn arguments(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn flags_are_those_of_the_first_cpu() {
    let text = "processor\t: 0\nflags\t\t: fpu vmx\nvmx flags\t: ept ple\n\nprocessor\t: 1\nflags\t\t: other\n";
    assert_eq!(text::cpu_flags(text), ["ept", "fpu", "ple", "vmx"]);
}

#[test]
fn interrupts_have_numbers_counts_and_actions() {
    let text = "            CPU0       CPU1\n  0:   12   3   IO-APIC   2-edge      timer\n 44:   1   0   IR-PCI-MSIX-0000:03:00.0   \
                4-edge   eth0-TxRx-4\n 45:   1   0   PCI-MSI\nNMI:  0  0  Non-maskable interrupts\nERR:  0\n";
    let read = text::interrupts(text);
    let rows: Vec<_> = read.iter().map(|one| (one.number, one.count, one.chip.as_str(), one.action.as_str())).collect();
    assert_eq!(
        rows,
        [(0, 15, "IO-APIC", "timer"), (44, 1, "IR-PCI-MSIX-0000:03:00.0", "eth0-TxRx-4"), (45, 1, "PCI-MSI", "")]
    );
}

#[test]
fn smaps_are_added_up_as_the_rollup_is_read() {
    let smaps = "1-2 rw-p 0 00:00 0\nRss:   100 kB\nAnonHugePages:  60 kB\nVmFlags: rd wr\n2-3 rw-p 0 00:00 0\nRss:   50 kB\n\
                 AnonHugePages: 10 kB\nPrivate_Hugetlb: 2048 kB\n";
    let memory = text::memory(smaps).expect("sums");
    assert_eq!(
        (memory.resident_kib, memory.anon_huge_kib, memory.hugetlb_kib, memory.total_kib()),
        (150, 70, 2048, 2198)
    );
    assert!(text::memory("").is_none());
}

#[test]
fn vcpus_are_known_by_their_names() {
    for name in ["CPU 0/KVM", "CPU 12/KVM", "fc_vcpu 3", "vcpu0", "crosvm_vcpu11"] {
        assert!(text::is_vcpu(name), "{name}");
    }
    for name in ["CPU 0/TCG", "CPU /KVM", "vcpu", "vcpux", "vhost-12", "", "IO iothread1"] {
        assert!(!text::is_vcpu(name), "{name}");
    }
}

#[test]
fn qemu_says_what_it_was_told() {
    let line = text::qemu(&arguments(&[
        "qemu-system-x86_64",
        "-name",
        "vm1",
        "-cpu",
        "host,kvm=off",
        "-overcommit",
        "mem-lock=off,cpu-pm=on",
        "-netdev",
        "tap,id=a,queues=4,vhost=on",
        "-nic",
        "user,model=virtio",
        "-netdev",
        "{\"type\":\"vhost-user\",\"id\":\"b\",\"queues\":2}",
        "--device",
        "vfio-pci,host=03:10.0",
        "-device",
        "virtio-net-pci,netdev=a",
    ]));
    assert_eq!((line.name.as_deref(), line.cpu_pm, line.no_kvm_clock), (Some("vm1"), true, true));
    let nics: Vec<_> =
        line.nics.iter().map(|nic| (nic.id.as_str(), nic.backend.as_str(), nic.queues, nic.vhost)).collect();
    assert_eq!(nics, [("a", "tap", 4, true), ("unnamed", "user", 1, false), ("b", "vhost-user", 2, false)]);
    assert_eq!(line.assigned, ["0000:03:10.0"]);
    let plain = text::qemu(&arguments(&["qemu", "-overcommit", "cpu-pm=off", "-cpu", "host"]));
    assert_eq!(plain, text::CommandLine::default());
}

#[test]
fn cloud_hypervisor_counts_queues_of_both_directions() {
    let line = text::cloud_hypervisor(&arguments(&[
        "ch",
        "--net",
        "tap=t0,num_queues=8",
        "id=x,vhost_user=on",
        "--cpus",
        "boot=4",
    ]));
    let nics: Vec<_> = line.nics.iter().map(|nic| (nic.id.as_str(), nic.backend.as_str(), nic.queues)).collect();
    assert_eq!(nics, [("t0", "built-in", 4), ("x", "vhost-user", 1)]);
}

proptest! {
    #[test]
    fn any_text_is_read_as_far_as_it_is_understood(text in "[ -~\\n\\t\u{e9}]{0,400}") {
        text::cpu_flags(&text);
        text::chosen(&text);
        text::interrupts(&text);
        text::vectors(&text);
        text::memory(&text);
        text::status_field(&text, "Rss");
        text::is_vcpu(&text);
    }

    #[test]
    fn any_command_line_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), option in "-{1,2}(name|cpu|netdev|nic|device|net|id|overcommit)", value in "[a-z,=:{}\"\\-0-9]{0,60}") {
        let mut arguments = text::arguments(&bytes);
        arguments.extend([option, value]);
        text::qemu(&arguments);
        text::cloud_hypervisor(&arguments);
        text::firecracker(&arguments);
    }

    #[test]
    fn counts_add_up(counts in proptest::collection::vec(0u64..1_000_000, 1..16)) {
        let header: String = (0..counts.len()).map(|cpu| format!(" CPU{cpu}")).collect();
        let columns: String = counts.iter().map(|count| format!(" {count}")).collect();
        let read = text::interrupts(&format!("{header}\n 7:{columns}  PCI-MSI 1-edge  nvme0q1\n"));
        prop_assert_eq!(read.len(), 1);
        prop_assert_eq!(read[0].count, counts.iter().sum::<u64>());
        prop_assert_eq!(read[0].action.as_str(), "nvme0q1");
    }
}
