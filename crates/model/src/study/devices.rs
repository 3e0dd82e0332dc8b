//! Devices of a machine, the service VM that serves them to others, and how a VM comes by them.

use crate::workload::Duration;
use crate::{ModelError, cpuset::MAX_CPUS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most devices of one kind.
const MAX_DEVICES: usize = 64;
/// Most connections of one VM.
const MAX_CONNECTIONS: u32 = 4096;

/// A network card, on a wire of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nic {
    /// What the wire carries in each direction, in Gb of payload a second. 10 GbE carries 9.48 (Dong et al., section
    /// III-C).
    pub line_gbps: f64,
    /// From the card to the other end of the wire, one way.
    pub latency_ns: u64,
    /// Pairs of queues of the physical function; as many as there are CPUs to serve them when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
    /// How the interrupts of a queue are moderated.
    pub moderation: Moderation,
    /// Payload of a packet: 1448 bytes of TCP in an Ethernet frame.
    pub packet_bytes: u32,
    /// How many packets go through a receiver's protocols as one (LRO, GRO).
    pub receive_batch: u32,
    /// How many packets a sender hands to the card as one (TSO).
    pub send_batch: u32,
    /// How many packets of one connection the peer sends in a row before it sends others': its own TSO, as far as windows
    /// and acknowledgements let it gather so many.
    pub peer_batch: u32,
    /// How many virtual functions it has.
    pub virtual_functions: u32,
}

impl Default for Nic {
    /// An Intel 82599 on 10 GbE.
    fn default() -> Self {
        Self {
            line_gbps: 9.48,
            latency_ns: 5_000,
            queues: None,
            moderation: Moderation::Adaptive,
            packet_bytes: 1448,
            receive_batch: 1,
            send_batch: 44,
            peer_batch: 16,
            virtual_functions: 63,
        }
    }
}

/// How often a queue may interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moderation {
    /// As often as its packets need, `policy::moderation` (Dong et al., HPCA 2010).
    Adaptive,
    /// At most so often a second (the card's ITR).
    PerSecond(u32),
}

impl Nic {
    fn validate(&self) -> Result<(), ModelError> {
        if !(self.line_gbps.is_finite() && self.line_gbps > 0.0 && self.line_gbps <= 1e4) {
            return Err(ModelError::new("line_gbps", self.line_gbps.to_string(), "above 0, at most 10000"));
        }
        let most = |name: &str, value: u64, most: u64| match value {
            0 => Err(ModelError::new(name, "0", format!("1 to {most}"))),
            _ if value > most => Err(ModelError::new(name, value.to_string(), format!("1 to {most}"))),
            _ => Ok(()),
        };
        most("queues", self.queues.unwrap_or(1).into(), 128)?;
        most("packet_bytes", self.packet_bytes.into(), 65_536)?;
        most("receive_batch", self.receive_batch.into(), 64)?;
        most("send_batch", self.send_batch.into(), 64)?;
        most("peer_batch", self.peer_batch.into(), 64)?;
        most("latency_ns", self.latency_ns.max(1), 1_000_000_000)?;
        if self.virtual_functions > 256 {
            return Err(ModelError::new("virtual_functions", self.virtual_functions.to_string(), "0 to 256"));
        }
        match self.moderation {
            Moderation::PerSecond(rate) => most("moderation", rate.into(), 1_000_000),
            Moderation::Adaptive => Ok(()),
        }
    }
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Random reads of 4 KiB a second, many at once.
    pub read_iops: u32,
    /// Random writes of 4 KiB a second.
    pub write_iops: u32,
    /// Bytes read a second, in large pieces.
    pub read_bytes_per_s: u64,
    /// Bytes written a second, in large pieces.
    pub write_bytes_per_s: u64,
    /// One read alone.
    pub read_latency_ns: u64,
    /// One write alone.
    pub write_latency_ns: u64,
    /// How many requests it takes at once (NCQ).
    pub queue_depth: u32,
}

impl Default for Disk {
    /// An Intel X25-E: its data sheet.
    fn default() -> Self {
        Self {
            read_iops: 35_000,
            write_iops: 3_300,
            read_bytes_per_s: 250_000_000,
            write_bytes_per_s: 170_000_000,
            read_latency_ns: 75_000,
            write_latency_ns: 85_000,
            queue_depth: 32,
        }
    }
}

impl Disk {
    fn validate(&self) -> Result<(), ModelError> {
        for (name, value) in [
            ("read_iops", u64::from(self.read_iops)),
            ("write_iops", u64::from(self.write_iops)),
            ("read_bytes_per_s", self.read_bytes_per_s),
            ("write_bytes_per_s", self.write_bytes_per_s),
        ] {
            if value == 0 || value > 1_000_000_000_000 {
                return Err(ModelError::new(name, value.to_string(), "1 to 1000000000000"));
            }
        }
        if self.read_latency_ns.max(self.write_latency_ns) > 1_000_000_000 {
            let found = self.read_latency_ns.max(self.write_latency_ns).to_string();
            return Err(ModelError::new("latency_ns", found, "0 to 1000000000"));
        }
        if self.queue_depth == 0 || self.queue_depth > 65_536 {
            return Err(ModelError::new("queue_depth", self.queue_depth.to_string(), "1 to 65536"));
        }
        Ok(())
    }
}

/// How the back ends of paravirtual network drivers are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackEnd {
    /// One thread for all front ends.
    Single,
    /// A thread on each vCPU of the service VM; each serves some of the front ends.
    #[default]
    Multi,
}

/// How a VMM gives out interrupt vectors (Dong et al., section IV-A); decided in `policy::vectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vectoring {
    /// A number on all pCPUs.
    Global,
    /// A number on one pCPU.
    PerPcpu,
    /// Level-triggered sources as with [`Self::Global`], edge-triggered ones as with [`Self::PerPcpu`].
    #[default]
    Hybrid,
}

/// The service VM (Xen's domain 0): it drives the devices, and runs the back ends of the other VMs' drivers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its memory; nothing depends on it but what stands in a table.
    #[serde(default = "service_memory")]
    pub memory_mb: u32,
    /// How the network's back ends are run.
    #[serde(default)]
    pub back_end: BackEnd,
    /// Its weight under the credit scheduler.
    #[serde(default = "weight")]
    pub weight: u16,
    /// How the VMM below gives out interrupt vectors.
    #[serde(default)]
    pub vectoring: Vectoring,
}

fn service_memory() -> u32 {
    512
}
fn weight() -> u16 {
    256
}

impl Service {
    fn validate(&self) -> Result<(), ModelError> {
        if self.vcpus == 0 || self.vcpus as usize > MAX_CPUS {
            return Err(ModelError::new("vcpus", self.vcpus.to_string(), format!("1 to {MAX_CPUS}")));
        }
        if self.weight == 0 {
            return Err(ModelError::new("weight", "0", "1 to 65535"));
        }
        Ok(())
    }
}

/// By which way a VM comes to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// A paravirtual driver's front end, whose back end is in the service VM.
    Pv,
    /// A virtual function that is assigned to the VM (SR-IOV); of a disk: the disk itself is.
    Vf,
    /// The machine itself drives the device.
    Native,
}

impl Path {
    fn name(self) -> &'static str {
        match self {
            Self::Pv => "pv",
            Self::Vf => "vf",
            Self::Native => "native",
        }
    }
}

/// What the computer at the other end of the wire does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Client {
    /// Sends as fast as windows and wire allow (netperf's TCP_STREAM towards the VM).
    StreamIn {
        /// Connections.
        connections: u32,
        /// What may be on its way or unread, of each.
        #[serde(default = "window")]
        window_bytes: u64,
    },
    /// Takes what comes.
    StreamOut {
        /// Connections.
        connections: u32,
        /// What may be on its way, of each.
        #[serde(default = "window")]
        window_bytes: u64,
    },
    /// Sends a request, waits for the reply, thinks, and so on.
    Requests {
        /// Connections, each with one request at a time.
        connections: u32,
        /// A request's size.
        request_bytes: u64,
        /// Between a reply and the next request.
        #[serde(default)]
        think_ns: Duration,
    },
}

fn window() -> u64 {
    262_144
}

impl Client {
    /// How many connections it has.
    pub fn connections(&self) -> u32 {
        match *self {
            Self::StreamIn { connections, .. }
            | Self::StreamOut { connections, .. }
            | Self::Requests { connections, .. } => connections,
        }
    }

    fn validate(&self) -> Result<(), ModelError> {
        if self.connections() == 0 || self.connections() > MAX_CONNECTIONS {
            let found = self.connections().to_string();
            return Err(ModelError::new("connections", found, format!("1 to {MAX_CONNECTIONS}")));
        }
        let (name, bytes) = match *self {
            Self::StreamIn { window_bytes, .. } | Self::StreamOut { window_bytes, .. } => {
                ("window_bytes", window_bytes)
            }
            Self::Requests { request_bytes, .. } => ("request_bytes", request_bytes),
        };
        if bytes == 0 || bytes > 1 << 30 {
            return Err(ModelError::new(name, bytes.to_string(), "1 to 1073741824"));
        }
        Ok(())
    }
}

/// A VM's network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// By which way it comes to the card.
    pub path: Path,
    /// Which of the experiment's `nics`.
    #[serde(default)]
    pub nic: u32,
    /// Who is at the other end.
    pub client: Client,
}

/// A VM's disks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// By which way it comes to them.
    pub path: Path,
    /// Which of the experiment's `disks`; requests go to them in turn.
    pub disks: Vec<u32>,
}

/// What a VM has of the machine's devices.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmDevices {
    /// Its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

impl VmDevices {
    /// Whether it has none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the service VM serves some of them.
    fn is_served(&self) -> bool {
        let network = self.network.as_ref().map(|network| network.path);
        network == Some(Path::Pv) || self.storage.as_ref().is_some_and(|storage| storage.path == Path::Pv)
    }
}

/// The machine's devices and who serves them, as an experiment states them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Devices<'a> {
    pub nics: &'a [Nic],
    pub disks: &'a [Disk],
    pub service: Option<&'a Service>,
    /// Whether there is no VMM.
    pub native: bool,
}

impl Devices<'_> {
    /// Checks them, and what each VM has of them.
    ///
    /// # Errors
    /// When a number is out of range, a VM names a device that is not there, or a way to it that is not.
    pub fn validate<'a>(&self, vms: impl Iterator<Item = (String, &'a VmDevices)>) -> Result<(), ModelError> {
        for (number, nic) in self.nics.iter().enumerate() {
            nic.validate().map_err(|error| error.within(&format!("nics[{number}]")))?;
        }
        for (number, disk) in self.disks.iter().enumerate() {
            disk.validate().map_err(|error| error.within(&format!("disks[{number}]")))?;
        }
        for (name, count) in [("nics", self.nics.len()), ("disks", self.disks.len())] {
            if count > MAX_DEVICES {
                return Err(ModelError::new(name, count.to_string(), format!("at most {MAX_DEVICES}")));
            }
        }
        if let Some(service) = self.service {
            service.validate().map_err(|error| error.within("service"))?;
            if self.native {
                return Err(ModelError::new("service", "a service VM on the machine itself", "none, or a VM"));
            }
        }
        let mut functions = vec![0; self.nics.len()];
        let mut assigned = BTreeMap::new();
        for (place, devices) in vms {
            check_assigned(devices, &mut assigned).map_err(|error| error.within(&place))?;
            self.check(devices, &mut functions).map_err(|error| error.within(&place))?;
        }
        for (number, (nic, wanted)) in self.nics.iter().zip(functions).enumerate() {
            if wanted > nic.virtual_functions {
                let found = format!("{} for {wanted} VMs with path `vf`", nic.virtual_functions);
                let place = format!("nics[{number}].virtual_functions");
                return Err(ModelError::new(place, found, "as many as VMs use"));
            }
        }
        Ok(())
    }

    fn check(&self, devices: &VmDevices, functions: &mut [u32]) -> Result<(), ModelError> {
        if devices.is_served() && self.service.is_none() {
            return Err(ModelError::new("path", "`pv` without a service VM", "`[service]` in the experiment"));
        }
        if let Some(network) = &devices.network {
            self.check_path(network.path)?;
            network.client.validate().map_err(|error| error.within("network.client"))?;
            let Some(functions) = functions.get_mut(network.nic as usize) else {
                return Err(there_is_none("network.nic", network.nic, self.nics.len()));
            };
            *functions += u32::from(network.path == Path::Vf);
        }
        if let Some(storage) = &devices.storage {
            self.check_path(storage.path)?;
            if storage.disks.is_empty() {
                return Err(ModelError::new("storage.disks", "none", "one or more"));
            }
            if let Some(&disk) = storage.disks.iter().find(|&&disk| disk as usize >= self.disks.len()) {
                return Err(there_is_none("storage.disks", disk, self.disks.len()));
            }
        }
        Ok(())
    }

    fn check_path(&self, path: Path) -> Result<(), ModelError> {
        if self.native == (path == Path::Native) {
            return Ok(());
        }
        let (found, allowed) = match self.native {
            true => (format!("`{}` on the machine itself", path.name()), "`native`"),
            false => ("`native` in a VM".to_owned(), "`pv` or `vf`"),
        };
        Err(ModelError::new("path", found, allowed))
    }
}

/// A disk that is assigned to a VM is nobody else's.
fn check_assigned(devices: &VmDevices, assigned: &mut BTreeMap<u32, bool>) -> Result<(), ModelError> {
    let Some(storage) = &devices.storage else { return Ok(()) };
    let alone = storage.path == Path::Vf;
    for &disk in &storage.disks {
        if assigned.insert(disk, alone).is_some_and(|other| other || alone) {
            let found = format!("disk {disk}, which is assigned to one VM with path `vf` and used by another");
            return Err(ModelError::new("storage.disks", found, "a disk for each VM with path `vf`"));
        }
    }
    Ok(())
}

fn there_is_none(place: &str, number: u32, there: usize) -> ModelError {
    let allowed = if there == 0 { "none: the experiment has none".to_owned() } else { format!("0 to {}", there - 1) };
    ModelError::new(place, number.to_string(), allowed)
}

#[cfg(test)]
mod tests {
    use crate::study::{BackEnd, Client, Experiment, Moderation, Path};

    const NETPERF: &str = "machine = 'm'\nworkload = 'w'\nenvironment = 'hvm'\ncores = 1\npcpus = 16\n\
        [service]\nvcpus = 8\nback_end = 'single'\n[[nics]]\nmoderation = { per-second = 8000 }\n\
        [[disks]]\n[devices]\nnetwork = { path = 'pv', client = { stream-in = { connections = 1 } } }\n\
        [[vms]]\nworkload = 'x'\nvcpus = 1\n[vms.devices]\nstorage = { path = 'pv', disks = [0] }\n\
        network = { path = 'vf', client = { requests = { connections = 4, request_bytes = 300, think_ns = 5 } } }\n";

    #[test]
    fn devices_are_read() {
        let experiment = Experiment::from_toml(NETPERF, "e.toml").unwrap();
        assert_eq!(experiment.nics[0].moderation, Moderation::PerSecond(8000));
        assert_eq!((experiment.nics[0].line_gbps, experiment.disks[0].read_iops), (9.48, 35_000));
        let service = experiment.service.as_ref().unwrap();
        assert_eq!((service.vcpus, service.back_end, service.memory_mb), (8, BackEnd::Single, 512));
        let vms = experiment.all_vms();
        let network = vms[0].devices.network.as_ref().unwrap();
        assert_eq!(
            (network.path, &network.client),
            (Path::Pv, &Client::StreamIn { connections: 1, window_bytes: 262_144 })
        );
        assert_eq!(vms[1].devices.network.as_ref().unwrap().client.connections(), 4);
    }

    #[test]
    fn devices_that_are_not_there_are_refused() {
        for (from, to, wanted) in [
            ("[[nics]]", "[[disks]]", "unknown field `moderation`"),
            ("disks = [0]", "disks = [1]", "vms[0].devices: storage.disks: found 1; allowed: 0 to 0"),
            ("disks = [0]", "disks = []", "storage.disks: found none"),
            ("{ path = 'pv', disks = [0] }", "{ path = 'vf', disks = [0, 0] }", "disk 0, which is assigned to one VM"),
            ("vcpus = 8", "vcpus = 0", "service: vcpus: found 0"),
            ("8000", "0", "nics[0]: moderation: found 0"),
            ("request_bytes = 300", "request_bytes = 0", "network.client: request_bytes: found 0"),
            ("connections = 1", "connections = 0", "devices: network.client: connections: found 0"),
            ("path = 'vf'", "path = 'native'", "vms[0].devices: path: found `native` in a VM"),
            ("path = 'vf'", "nic = 1, path = 'vf'", "network.nic: found 1; allowed: 0 to 0"),
            ("{ per-second = 8000 }", "'adaptive'\nvirtual_functions = 0", "virtual_functions: found 0 for 1 VMs"),
            ("[service]\nvcpus = 8\nback_end = 'single'\n", "", "found `pv` without a service VM"),
            ("back_end = 'single'", "back_end = 'double'", "unknown variant `double`"),
        ] {
            assert!(NETPERF.contains(from), "{from}");
            let error = Experiment::from_toml(&NETPERF.replacen(from, to, 1), "e.toml").unwrap_err().to_string();
            assert!(error.starts_with("e.toml") && error.contains(wanted), "{error}");
        }
    }
}
