//! What is set on a host: changes that stay, files of recorded trees, virtual functions, drivers.

mod common;

use common::*;
use muster_undo::{Change, Directory, Error, Journal, State, list, preview, reads_as, recover, undo_about, undo_all};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn directory(path: &Path) -> Directory {
    Directory::at(path).unwrap()
}

#[test]
fn what_is_kept_is_undone_only_when_asked_for() {
    let temp = private_directory();
    let (journals, file) = (temp.path().join("journals"), temp.path().join("file"));
    fs::write(&file, "0\n").unwrap();
    let journal = Journal::create_about(directory(&journals), "one", Some("host /")).unwrap();
    journal.write_file(&file, "4096").unwrap();
    journal.keep().unwrap();
    assert_eq!(list(&directory(&journals)).unwrap()[0].state, State::Kept);
    assert!(recover(&directory(&journals)).unwrap().is_empty());
    assert!(undo_about(&directory(&journals), "host /elsewhere").unwrap().is_empty());
    assert_eq!(fs::read_to_string(&file).unwrap(), "4096\n");
    let second = Journal::create(directory(&journals), "two").unwrap();
    let refused = second.write_file(&file, "7").unwrap_err();
    assert!(matches!(&refused, Error::Claimed { by, .. } if by.contains("undo it first")), "{refused}");
    assert_eq!(preview(&directory(&journals), Some("host /")).unwrap()[0].restored.len(), 1);
    assert_eq!(undo_about(&directory(&journals), "host /").unwrap()[0].restored.len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "0\n");
    second.write_file(&file, "7").unwrap();
    second.keep().unwrap();
    assert_eq!(undo_all(&directory(&journals)).unwrap()[0].restored.len(), 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), "0\n");
    assert!(list(&directory(&journals)).unwrap().is_empty());
}

#[test]
fn what_cannot_be_put_back_stays_kept() {
    let temp = private_directory();
    let journals = temp.path().join("journals");
    let tree = Tree::new(temp.path());
    tree.file("sriov_numvfs", "0\n");
    let journal = Journal::create(directory(&journals), "one").unwrap();
    journal.set_virtual_functions(&tree.root, DEVICE, 2).unwrap();
    journal.keep().unwrap();
    tree.in_use_by(4711);
    let report = undo_all(&directory(&journals)).unwrap().remove(0);
    assert!(report.failed[0].why.as_ref().unwrap().contains("in use by process 4711"), "{report:?}");
    assert_eq!(list(&directory(&journals)).unwrap()[0].state, State::Kept);
    fs::remove_dir_all(tree.root.join("proc")).unwrap();
    assert!(undo_all(&directory(&journals)).unwrap()[0].is_complete());
    assert_eq!(tree.read("sriov_numvfs"), "0\n");
}

const DEVICE: &str = "0000:03:00.0";

/// A recorded PCI device.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(temp: &Path) -> Self {
        let tree = Self { root: temp.join("root") };
        fs::create_dir_all(tree.device()).unwrap();
        for driver in ["vfio-pci", "igbvf", "other"] {
            let place = tree.drivers().join(driver);
            fs::create_dir_all(&place).unwrap();
            ["bind", "unbind"].iter().for_each(|file| fs::write(place.join(file), "").unwrap());
        }
        fs::write(tree.drivers().join("../drivers_probe"), "").unwrap();
        tree
    }

    fn device(&self) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(DEVICE)
    }

    fn drivers(&self) -> PathBuf {
        self.root.join("sys/bus/pci/drivers")
    }

    fn file(&self, name: &str, content: &str) {
        fs::write(self.device().join(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.device().join(name)).unwrap()
    }

    /// What the kernel does when a driver takes the device.
    fn set_driver(&self, driver: Option<&str>) {
        let link = self.device().join("driver");
        let _may_be_missing = fs::remove_file(&link);
        if let Some(driver) = driver {
            symlink(self.drivers().join(driver), link).unwrap();
        }
    }

    /// A virtual function of the device that a process has open.
    fn in_use_by(&self, pid: u32) {
        let function = self.root.join("sys/bus/pci/devices/0000:03:10.0");
        fs::create_dir_all(&function).unwrap();
        symlink("../0000:03:10.0", self.device().join("virtfn0")).unwrap();
        symlink("../../drivers/vfio-pci", function.join("driver")).unwrap();
        symlink("../../../../kernel/iommu_groups/41", function.join("iommu_group")).unwrap();
        let files = self.root.join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&files).unwrap();
        symlink("/dev/vfio/41", files.join("7")).unwrap();
    }
}

#[test]
fn virtual_functions_go_by_way_of_none() {
    let temp = private_directory();
    let tree = Tree::new(temp.path());
    let journals = temp.path().join("journals");
    for (now, after) in [("8", "4\n"), ("0", "4\n"), ("4", "4"), ("5", "5")] {
        tree.file("sriov_numvfs", "4\n");
        let journal = Journal::create(directory(&journals), "run").unwrap();
        journal.set_virtual_functions(&tree.root, DEVICE, 8).unwrap();
        assert_eq!(tree.read("sriov_numvfs"), "8\n");
        // As a crash, or somebody else, left it.
        tree.file("sriov_numvfs", now);
        let report = journal.restore();
        assert_eq!(tree.read("sriov_numvfs"), after, "{report:?}");
        assert_eq!(report.left_alone.len(), usize::from(now == "5"));
    }
    let journal = Journal::create(directory(&journals), "run").unwrap();
    for device in ["", "../x", "..", "0000:03:00.0/../x"] {
        let change =
            Change::VirtualFunctions { root: tree.root.clone(), device: device.to_owned(), before: 0, after: 1 };
        assert!(matches!(journal.record(&change), Err(Error::Refused { .. })), "{device}");
    }
}

/// The files of a tree do not act: what the kernel would do is done by hand in between.
#[test]
fn a_device_gets_its_driver_back() {
    let temp = private_directory();
    let tree = Tree::new(temp.path());
    let journals = temp.path().join("journals");
    tree.file("driver_override", "(null)\n");
    tree.set_driver(Some("igbvf"));
    let journal = Journal::create(directory(&journals), "run").unwrap();
    let failed = journal.bind(&tree.root, DEVICE, Some("vfio-pci")).unwrap_err();
    assert!(failed.to_string().contains("its driver is igbvf"), "{failed}");
    assert_eq!(tree.read("driver_override"), "vfio-pci\n");
    let driver = |name: &str, file: &str| fs::read_to_string(tree.drivers().join(name).join(file)).unwrap();
    assert_eq!(driver("igbvf", "unbind"), format!("{DEVICE}\n"));
    assert_eq!(fs::read_to_string(tree.drivers().join("../drivers_probe")).unwrap(), format!("{DEVICE}\n"));

    tree.set_driver(Some("vfio-pci"));
    let report = journal.restore();
    assert_eq!(report.failed.len(), 1, "a tree binds nothing: {report:?}");
    assert_eq!(tree.read("driver_override"), "(null)\n");
    assert_eq!(driver("vfio-pci", "unbind"), format!("{DEVICE}\n"));
    assert_eq!(driver("igbvf", "bind"), format!("{DEVICE}\n"));
    // Still this process's journal, which ends with it; here the kernel has done its part.
    tree.set_driver(Some("igbvf"));
    assert!(journal.restore().is_complete() && !journal.path().exists());
}

#[test]
fn a_driver_that_somebody_else_chose_is_left_alone() {
    let temp = private_directory();
    let tree = Tree::new(temp.path());
    tree.file("driver_override", "(null)\n");
    tree.set_driver(Some("igbvf"));
    let journal = Journal::create(directory(&temp.path().join("journals")), "run").unwrap();
    journal.bind(&tree.root, DEVICE, Some("vfio-pci")).unwrap_err();
    tree.set_driver(Some("other"));
    let report = journal.restore();
    assert!(report.left_alone[0].why.as_ref().unwrap().contains("other"), "{report:?}");
    assert_eq!(tree.read("driver_override"), "vfio-pci\n");
}

#[test]
fn modules_are_named_and_what_is_not_loaded_needs_no_unloading() {
    let temp = private_directory();
    let journal = Journal::create(directory(&temp.path().join("journals")), "run").unwrap();
    for module in ["", "-r", "a b", "../x"] {
        assert!(matches!(journal.load_module(module, &BTreeMap::new()), Err(Error::Refused { .. })), "{module}");
    }
    let missing = journal.load_module("muster_no_such_module", &BTreeMap::new()).unwrap_err();
    assert!(missing.to_string().contains("muster_no_such_module"), "{missing}");
    assert!(journal.restore().is_complete());
}

#[test]
fn a_value_is_recognised_as_the_kernel_shows_it() {
    assert!(reads_as("always [madvise] never\n", "madvise"));
    assert!(reads_as("Y\n", "1") && !reads_as("N\n", "1"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A file of a recorded tree gets back every byte, however long the values in between were.
    #[test]
    fn a_recorded_file_gets_every_byte_back(
        original in "([a-z]{1,6} ){0,3}\\[[a-z]{1,6}\\]( [a-z]{1,6}){0,3}\n|[0-9]{1,12}\n?| *[a-z]{0,9}\n{0,3}",
        values in proptest::collection::vec("[a-z0-9]{1,20}", 1..4),
    ) {
        let temp = private_directory();
        let file = temp.path().join("file");
        fs::write(&file, &original).unwrap();
        let journal = Journal::create(directory(&temp.path().join("journals")), "run").unwrap();
        for value in &values {
            journal.write_file(&file, value).unwrap();
            prop_assert_eq!(fs::read_to_string(&file).unwrap(), format!("{}\n", value));
        }
        prop_assert!(journal.restore().is_complete());
        prop_assert_eq!(fs::read_to_string(&file).unwrap(), original);
    }
}
