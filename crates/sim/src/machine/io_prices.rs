//! The prices of networks and disks, by name, from a machine profile.

use crate::engine::{Ps, from_ns};
use muster_model::Profile;

macro_rules! io_prices {
    ($($(#[$doc:meta])* $field:ident = $name:literal or $ns:literal,)*) => {
        /// What packets and disk requests take, in picoseconds.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct IoPrices {
            $($(#[$doc])* pub $field: Ps,)*
        }

        impl IoPrices {
            /// The names of all prices, and what is assumed where a profile does not say, in ns.
            pub const NAMES: &[(&str, f64)] = &[$(($name, $ns)),*];

            /// Takes the prices out of a profile; those that it lacks are assumed.
            pub fn new(profile: &Profile) -> Self {
                Self { $($field: from_ns(profile.price_ns($name).unwrap_or($ns)),)* }
            }
        }
    };
}

io_prices! {
    /// A card's driver for one packet that came: descriptor, socket buffer, a fresh buffer for the card.
    driver_receive = "sim.net.driver-receive" or 350.0,
    /// A card's driver for what a sender hands over at once: descriptors, and later their release.
    driver_send = "sim.net.driver-send" or 500.0,
    /// IP and TCP for what a receiver takes as one packet, half an acknowledgement included.
    stack_receive = "sim.net.stack-receive" or 650.0,
    /// TCP and IP for what a sender hands over at once.
    stack_send = "sim.net.stack-send" or 1200.0,
    /// A socket's call beyond the system call, without the copy.
    socket_call = "sim.net.socket-call" or 300.0,
    /// Bridge and packet filter of the service VM for one packet.
    bridge = "sim.net.bridge" or 1500.0,
    /// A front end for one packet that came: response, grants, a fresh page for the ring.
    front_end_receive = "sim.net.front-end-receive" or 500.0,
    /// A front end for what a sender hands over at once.
    front_end_send = "sim.net.front-end-send" or 900.0,
    /// A back end's batch: the hypercall that copies all of it.
    back_end_batch = "sim.net.back-end-batch" or 1000.0,
    /// A back end for one packet to a front end, without the copy: request, copy operation and its checks, response.
    back_end_receive = "sim.net.back-end-receive" or 2650.0,
    /// A back end for what a front end hands over at once: mapping and unmapping its pages.
    back_end_send = "sim.net.back-end-send" or 3500.0,
    /// A hypercall's way in and out, without an exit.
    hypercall = "sim.net.hypercall" or 150.0,
    /// Sending an event to another VM.
    event_send = "sim.net.event-send" or 400.0,
    /// An event's upcall into the service VM, and the return from it.
    upcall = "sim.net.upcall" or 1000.0,
    /// Copying a line that a CPU of the same last-level cache has just written.
    line_cached = "sim.net.line-cached" or 4.0,
    /// Copying a line that is in the last-level cache of another node.
    line_remote = "sim.net.line-remote" or 18.0,
    /// Copying a line from memory, one of many in a row.
    line_memory = "sim.net.line-memory" or 10.0,
    /// A card's way to memory with what came.
    dma = "sim.net.dma" or 900.0,
    /// What a translation that the IOMMU has to look for adds to that.
    iotlb_miss = "sim.net.iotlb-miss" or 300.0,
    /// File system and block layer for one request.
    disk_request = "sim.disk.request" or 4000.0,
    /// A controller's driver for one request.
    disk_driver = "sim.disk.driver" or 1500.0,
    /// What is done for a request that is over.
    disk_complete = "sim.disk.complete" or 2000.0,
    /// A front end for one request.
    disk_front_end = "sim.disk.front-end" or 1000.0,
    /// A back end for one request.
    disk_back_end = "sim.disk.back-end" or 4000.0,
    /// Mapping and unmapping one page of it.
    disk_page = "sim.disk.page" or 450.0,
}
