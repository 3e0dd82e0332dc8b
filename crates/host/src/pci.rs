//! Devices that can have virtual functions, and those they have.

use crate::tree::Tree;
use muster_model::host::{PhysicalFunction, VirtualFunction};

pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";

pub(crate) fn read(tree: &Tree) -> Vec<PhysicalFunction> {
    tree.names(DEVICES).into_iter().filter_map(|address| physical_function(tree, address)).collect()
}

/// The device if it can have virtual functions.
fn physical_function(tree: &Tree, address: String) -> Option<PhysicalFunction> {
    let place = format!("{DEVICES}/{address}");
    let functions = functions_of(tree, &address)?;
    let total = tree.value(&format!("{place}/sriov_totalvfs")).filter(|&total| total > 0)?;
    let hex = |file: &str| {
        tree.word(&format!("{place}/{file}")).map(|text| text.trim_start_matches("0x").to_owned()).unwrap_or_default()
    };
    Some(PhysicalFunction {
        id: format!("{}:{}", hex("vendor"), hex("device")),
        class: class(&hex("class")),
        driver: tree.link_name(&format!("{place}/driver")),
        interfaces: tree.names(&format!("{place}/net")),
        total,
        enabled: tree.value(&format!("{place}/sriov_numvfs")).unwrap_or(0),
        autoprobe: tree.word(&format!("{place}/sriov_drivers_autoprobe")).map(|word| word == "1"),
        // -1 where the machine does not say.
        node: tree.word(&format!("{place}/numa_node")).and_then(|node| node.parse().ok()),
        functions: functions.into_iter().map(|function| virtual_function(tree, function)).collect(),
        address,
    })
}

/// The addresses of a device's virtual functions, in their order; `None` for a device that can have none.
pub(crate) fn functions_of(tree: &Tree, address: &str) -> Option<Vec<String>> {
    let place = format!("{DEVICES}/{address}");
    if !tree.has(&format!("{place}/sriov_totalvfs")) {
        return None;
    }
    let names = tree.names(&place);
    let functions = names.iter().filter_map(|name| {
        let index = name.strip_prefix("virtfn")?.parse().ok()?;
        Some((index, tree.link_name(&format!("{place}/{name}"))?))
    });
    let mut functions: Vec<(u64, String)> = functions.collect();
    functions.sort();
    Some(functions.into_iter().map(|(_, function)| function).collect())
}

fn virtual_function(tree: &Tree, address: String) -> VirtualFunction {
    let place = format!("{DEVICES}/{address}");
    let group = tree.link_name(&format!("{place}/iommu_group")).and_then(|name| name.parse().ok());
    let size = |group: u32| tree.names(&format!("/sys/kernel/iommu_groups/{group}/devices")).len();
    VirtualFunction {
        driver: tree.link_name(&format!("{place}/driver")),
        group: group.map(|group| (group, size(group))),
        address,
    }
}

/// A PCI class in words.
fn class(code: &str) -> String {
    match code.get(..4) {
        Some("0200") => "Ethernet controller".to_owned(),
        Some("0108") => "NVMe controller".to_owned(),
        Some("0207") => "InfiniBand controller".to_owned(),
        Some(other) if other.starts_with("03") => "display controller".to_owned(),
        Some(other) if other.starts_with("12") => "accelerator".to_owned(),
        _ => format!("device of class {code}"),
    }
}
