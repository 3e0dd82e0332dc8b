//! Who wakes whom, seen by BPF: loads `bpf/wakes.bpf.c`, attaches it for a while, reads its sums. Needs root.

use crate::wakes::{Latency, Totals};
use libbpf_rs::libbpf_sys;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder};
use muster_model::{ThreadId, WakePair};
use std::os::fd::{FromRawFd, OwnedFd};

/// The BPF program cannot be used here.
#[derive(Debug, thiserror::Error)]
#[error("BPF cannot {what}: {source}")]
pub struct BpfError {
    what: &'static str,
    source: libbpf_rs::Error,
}

fn cannot(what: &'static str) -> impl Fn(libbpf_rs::Error) -> BpfError {
    move |source| BpfError { what, source }
}

/// The compiled program; libbpf reads it in place and wants it aligned.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/wakes.bpf.o")));

const BUCKETS: usize = 32;
const WORDS: usize = 8 + BUCKETS;

/// Adds one CPU's `struct totals`, as it lies in the map: 64-bit words in the machine's byte order.
fn add(totals: &mut Totals, bytes: &[u8]) {
    let mut words = [0u64; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
    }
    let latency = |sum: &mut Latency, at: usize| {
        sum.count += words[at];
        sum.sum_ns += words[at + 1];
    };
    totals.events += words[0];
    totals.wakes += words[1];
    latency(&mut totals.same_cpu, 2);
    latency(&mut totals.idle_cpu, 4);
    latency(&mut totals.busy_cpu, 6);
    totals.slept_log2_us.resize(BUCKETS, 0);
    totals.slept_log2_us.iter_mut().zip(&words[8..]).for_each(|(sum, word)| *sum += word);
}

/// The loaded program; attached between [`WakeTracer::attach`] and [`WakeTracer::detach`].
#[derive(Debug)]
pub struct WakeTracer {
    object: Object,
    links: Vec<Link>,
}

impl WakeTracer {
    /// Loads the program.
    ///
    /// # Errors
    /// Without root (CAP_BPF, CAP_PERFMON), without the kernel's BTF, or where the kernel refuses the program.
    pub fn load() -> Result<Self, BpfError> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
        let mut builder = ObjectBuilder::default();
        let open = builder.open_memory(&OBJECT.0).map_err(cannot("read its own program"))?;
        let object = open.load().map_err(cannot("load its program (it takes root and /sys/kernel/btf/vmlinux)"))?;
        Ok(Self { object, links: Vec::new() })
    }

    /// Adds processes to those whose threads are watched.
    ///
    /// # Errors
    /// When there are more than 16384.
    pub fn watch(&self, processes: impl Iterator<Item = u32>) -> Result<(), BpfError> {
        let watched = self.map("watched");
        for process in processes {
            watched
                .update(&process.to_ne_bytes(), &[1], MapFlags::ANY)
                .map_err(cannot("take another process under watch"))?;
        }
        Ok(())
    }

    /// Starts to count.
    ///
    /// # Errors
    /// When the kernel refuses a raw tracepoint.
    pub fn attach(&mut self) -> Result<(), BpfError> {
        for program in self.object.progs_mut() {
            self.links.push(program.attach().map_err(cannot("attach to a raw tracepoint"))?);
        }
        Ok(())
    }

    /// Stops counting; the sums stay.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// The sums so far.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn totals(&self) -> Result<Totals, BpfError> {
        let per_cpu = self
            .map("totals")
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(cannot("read its sums"))?
            .unwrap_or_default();
        let mut totals = Totals::default();
        per_cpu.iter().for_each(|bytes| add(&mut totals, bytes));
        Ok(totals)
    }

    /// Who woke whom how often since this was last asked, most frequent first; to be asked while detached.
    pub fn take_pairs(&self) -> Vec<WakePair> {
        let pairs = self.map("pairs");
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
        let take = |key: Vec<u8>| {
            let count = pairs.lookup_and_delete(&key).ok()??;
            Some(WakePair {
                waker: ThreadId(number(&key[..4])?),
                wakee: ThreadId(number(&key[4..])?),
                count: u64::from_ne_bytes(count.try_into().ok()?),
            })
        };
        // The keys first: a walk that meets a deleted key begins again.
        let keys: Vec<Vec<u8>> = pairs.keys().collect();
        let mut found: Vec<WakePair> = keys.into_iter().filter_map(take).collect();
        found.sort_by_key(|pair| (std::cmp::Reverse(pair.count), pair.waker, pair.wakee));
        found
    }

    /// What the program takes per tracepoint on average, in nanoseconds, while [`RunTimes`] were kept; `None` before
    /// the first.
    pub fn price_ns(&self) -> Option<f64> {
        let (mut runs, mut time_ns) = (0u64, 0u64);
        for program in self.object.progs() {
            let mut info = libbpf_sys::bpf_prog_info::default();
            let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
            let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&program));
            // SAFETY: `info` is writable and `length` bytes long; the program's descriptor is open.
            if unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut length) } == 0 {
                runs += info.run_cnt;
                time_ns += info.run_time_ns;
            }
        }
        (runs > 0).then(|| time_ns as f64 / runs as f64)
    }

    fn map(&self, name: &str) -> impl MapCore + '_ {
        self.object.maps().find(|map| map.name() == name).expect("the program declares this map")
    }
}

/// As long as this lives, the kernel keeps the run times of BPF programs (BPF_ENABLE_STATS, bpf(2)).
#[derive(Debug)]
pub struct RunTimes {
    _stats: OwnedFd,
}

impl RunTimes {
    /// Starts to keep them; `None` where the kernel does not.
    pub fn keep() -> Option<Self> {
        // SAFETY: takes a number, returns a descriptor of its own or a negative error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        // SAFETY: the descriptor is new and nobody else's.
        (fd >= 0).then(|| Self { _stats: unsafe { OwnedFd::from_raw_fd(fd) } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_add_up_over_cpus() {
        let words: Vec<u8> = (1..=WORDS as u64).flat_map(u64::to_ne_bytes).collect();
        let mut totals = Totals::default();
        add(&mut totals, &words);
        add(&mut totals, &words);
        assert_eq!((totals.events, totals.wakes), (2, 4));
        assert_eq!(totals.busy_cpu, Latency { count: 14, sum_ns: 16 });
        assert_eq!((totals.slept_log2_us[0], totals.slept_log2_us[31]), (18, 80));
    }

    #[test]
    fn sees_threads_wake_each_other() {
        let mut tracer = match WakeTracer::load() {
            Ok(tracer) => tracer,
            Err(error) => return eprintln!("SKIPPED: sees_threads_wake_each_other: {error}"),
        };
        tracer.watch([std::process::id()].into_iter()).unwrap();
        tracer.attach().unwrap();
        let (to, from) = std::sync::mpsc::channel();
        let (back, answer) = std::sync::mpsc::channel();
        let echo = std::thread::spawn(move || from.iter().for_each(|n: u32| back.send(n).unwrap()));
        for n in 0..2_000 {
            to.send(n).unwrap();
            answer.recv().unwrap();
        }
        tracer.detach();
        drop(to);
        echo.join().unwrap();
        let totals = tracer.totals().unwrap();
        let pairs = tracer.take_pairs();
        assert!(totals.events >= totals.wakes && totals.wakes > 100, "{totals:?}");
        assert!(pairs.len() >= 2 && pairs[0].count > 50, "{pairs:?}");
        assert!(tracer.take_pairs().is_empty(), "they are told once");
        let again = tracer.totals().unwrap();
        assert_eq!(again.wakes, totals.wakes, "detached programs do not count");
    }
}
