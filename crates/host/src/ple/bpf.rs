//! The two BPF programs (`../bpf`): loaded, attached for a while, their sums and events read. Needs root.

use super::PleError;
use super::format::Fields;
use super::spins::Spins;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, RingBufferBuilder};
use muster_policy::ple::Waits;
use std::cell::RefCell;

/// A compiled program; libbpf reads it in place and wants it aligned.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);
static LOCK_WAITS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/lock_waits.bpf.o")));
static PAUSE_EXITS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/pause_exits.bpf.o")));

/// Where a program keeps what is set before it is loaded.
const SETTINGS: &str = ".rodata.settings";

fn cannot(what: &'static str) -> impl Fn(libbpf_rs::Error) -> PleError {
    move |error| PleError::Bpf { what, why: error.to_string() }
}

/// A loaded program; attached between `attach` and `detach`.
#[derive(Debug)]
struct Program {
    object: Object,
    links: Vec<Link>,
}

impl Program {
    fn load(bytes: &'static [u8], settings: &[u8]) -> Result<Self, PleError> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
        let mut open = ObjectBuilder::default().open_memory(bytes).map_err(cannot("read its own program"))?;
        let mut map = open.maps_mut().find(|map| map.name() == SETTINGS).expect("the program declares its settings");
        map.set_initial_value(settings).map_err(cannot("set up its program"))?;
        let object = open.load().map_err(cannot("load its program (it takes root: CAP_BPF and CAP_PERFMON)"))?;
        Ok(Self { object, links: Vec::new() })
    }

    fn attach(&mut self, what: &'static str) -> Result<(), PleError> {
        for program in self.object.progs_mut() {
            self.links.push(program.attach().map_err(cannot(what))?);
        }
        Ok(())
    }

    fn map(&self, name: &str) -> impl MapCore + '_ {
        self.object.maps().find(|map| map.name() == name).expect("the program declares this map")
    }

    /// The first words of each CPU's sums, added up.
    fn sums<const WORDS: usize>(&self, name: &str) -> Result<[u64; WORDS], PleError> {
        let map = self.map(name);
        let per_cpu = map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(cannot("read its sums"))?;
        let mut sums = [0u64; WORDS];
        for bytes in per_cpu.unwrap_or_default() {
            for (sum, word) in sums.iter_mut().zip(bytes.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes"));
            }
        }
        Ok(sums)
    }
}

/// Sums up how long the kernel spins for locks.
#[derive(Debug)]
pub struct LockTracer(Program);

impl LockTracer {
    /// Loads the program, which counts in cycles of a TSC of `tsc_khz`.
    pub fn load(tsc_khz: u64) -> Result<Self, PleError> {
        Program::load(&LOCK_WAITS.0, &tsc_khz.to_ne_bytes()).map(Self)
    }

    /// Starts to count.
    pub fn attach(&mut self) -> Result<(), PleError> {
        self.0.attach("attach to the tracepoints contention_begin and contention_end (Linux 5.19 and later)")
    }

    /// Stops counting; the sums stay.
    pub fn detach(&mut self) {
        self.0.links.clear();
    }

    /// Waits for spin locks, reader-writer locks and mutexes; how many had no end.
    pub fn sums(&self) -> Result<([Waits; 3], u64), PleError> {
        const KINDS: usize = 3;
        const WORDS: usize = KINDS * Waits::POWERS + 1;
        let words: [u64; WORDS] = self.0.sums("cpus")?;
        let kind = |kind: usize| Waits::from(std::array::from_fn(|power| words[kind * Waits::POWERS + power]));
        Ok(([kind(0), kind(1), kind(2)], words[WORDS - 1]))
    }
}

/// Tells PAUSE exits and changes of windows one by one.
#[derive(Debug)]
pub struct ExitTracer(Program);

impl ExitTracer {
    /// Loads the program, for a kernel whose tracepoints have these fields.
    pub fn load(fields: &Fields) -> Result<Self, PleError> {
        let settings: Vec<u8> = fields.words().into_iter().flat_map(u32::to_ne_bytes).collect();
        Program::load(&PAUSE_EXITS.0, &settings).map(Self)
    }

    /// Starts to watch.
    pub fn attach(&mut self) -> Result<(), PleError> {
        self.0.attach("attach to the tracepoints kvm_exit and kvm_ple_window_update (tracefs in /sys/kernel/tracing)")
    }

    /// Stops watching; what was not taken yet stays.
    pub fn detach(&mut self) {
        self.0.links.clear();
    }

    /// Hands over what happened since this was last asked.
    pub fn take(&self, spins: &mut Spins) -> Result<(), PleError> {
        let (spins, map) = (RefCell::new(spins), self.0.map("events"));
        let mut builder = RingBufferBuilder::new();
        let on_event = |bytes: &[u8]| {
            let word = |at: usize| u32::from_ne_bytes(bytes[4 * at..][..4].try_into().expect("four bytes"));
            let (thread, old, new) = (word(0), word(1), word(2));
            let mut spins = spins.borrow_mut();
            if new == 0 {
                spins.exited(thread)
            } else {
                spins.window_changed(thread, old, new)
            }
            0
        };
        builder.add(&map, on_event).map_err(cannot("read its events"))?;
        builder.build().and_then(|ring| ring.consume()).map_err(cannot("read its events"))
    }

    /// All exits, and events that found no room.
    pub fn counts(&self) -> Result<(u64, u64), PleError> {
        let [exits, lost] = self.0.sums("counts")?;
        Ok((exits, lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_tells_how_long_it_spins() {
        let mut tracer = match LockTracer::load(1_000_000).and_then(|mut tracer| tracer.attach().map(|()| tracer)) {
            Ok(tracer) => tracer,
            Err(error) => return eprintln!("SKIPPED: a_kernel_tells_how_long_it_spins: {error}"),
        };
        // Threads and files come and go: locks of the kernel that processes share.
        let start = |number: usize| {
            std::thread::spawn(move || {
                for _ in 0..300 {
                    let child = std::thread::spawn(move || tempfile::tempfile().map(drop));
                    child.join().expect("the thread ends").unwrap_or_else(|error| panic!("thread {number}: {error}"));
                }
            })
        };
        let threads: Vec<_> = (0..8).map(start).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
        tracer.detach();
        let (first, lost) = tracer.sums().unwrap();
        assert_eq!(tracer.sums().unwrap(), (first.clone(), lost), "detached, it does not count");
        let waits: u64 = first.iter().map(Waits::count).sum();
        eprintln!("{waits} waits, {lost} lost: {first:?}");
        if waits == 0 {
            eprintln!("SKIPPED: a_kernel_tells_how_long_it_spins: no lock was contended");
        }
        // By a nanosecond a cycle: no spin lasts a minute.
        assert!(first.iter().all(|kind| kind.longer_than(36) == 0), "{first:?}");
    }
}
