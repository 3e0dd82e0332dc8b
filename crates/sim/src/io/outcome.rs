//! What VMs did with devices: counts and latencies.

use crate::engine::Ps;

macro_rules! io_counts {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// What a VM did with devices, over the whole run.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct IoCounts {
            $($(#[$doc])* pub $field: u64,)*
        }
    };
}

io_counts! {
    /// Payload that its program took, in bytes.
    received_bytes,
    /// Packets that came.
    received_packets,
    /// Payload that arrived at the peer, in bytes.
    sent_bytes,
    /// Packets of those.
    sent_packets,
    /// Requests that were answered.
    requests,
    /// Interrupts and events that devices and back ends sent it.
    interrupts,
    /// Events that it sent to the service VM, by leaving the guest where it is hardware-assisted.
    notifications,
    /// Reads of a disk.
    disk_reads,
    /// Writes.
    disk_writes,
    /// Bytes read and written.
    disk_bytes,
}

/// Latencies, in buckets a sixteenth of an octave wide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum: Ps,
}

impl Latencies {
    /// Adds one.
    pub fn add(&mut self, latency: Ps) {
        let bucket = Self::bucket(latency);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += latency;
    }

    fn bucket(latency: Ps) -> usize {
        let latency = latency.max(16);
        let octave = latency.ilog2() as usize;
        (octave - 4) * 16 + ((latency >> (octave - 4)) as usize - 16)
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 when there is none.
    pub fn mean(&self) -> Ps {
        self.sum / self.count.max(1)
    }

    /// The latency that so many per cent do not exceed, to a sixteenth; 0 when there is none.
    pub fn percentile(&self, percent: u64) -> Ps {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (17 + bucket as Ps % 16) << (bucket / 16);
            }
        }
        0
    }
}

/// What a run gave of a VM's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoOutcome {
    /// Counts.
    pub counts: IoCounts,
    /// From sending a request to its reply, as the client sees it.
    pub latency: Latencies,
    /// From a thread's request to a disk until it is done.
    pub disk_latency: Latencies,
}

/// What is counted of a VM.
#[derive(Debug, Default)]
pub struct OfVm {
    /// Counts.
    pub counts: IoCounts,
    /// Of requests.
    pub latency: Latencies,
    /// Of its disks.
    pub disk_latency: Latencies,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let mut latencies = Latencies::default();
        (1..=1000u64).for_each(|i| latencies.add(i * 1_000_000));
        for percent in [1, 50, 95, 99, 100] {
            let (found, wanted) = (latencies.percentile(percent) as f64, percent as f64 * 10e6);
            assert!((1.0..=1.0 + 1.0 / 16.0).contains(&(found / wanted)), "{percent} %: {found} for {wanted}");
        }
        assert_eq!((latencies.count(), latencies.mean()), (1000, 500_500_000));
        assert_eq!(Latencies::default().percentile(99), 0);
    }
}
