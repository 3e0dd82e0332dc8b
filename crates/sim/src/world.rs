//! The simulated world: all state in flat arrays, and the loop that takes one event after the other.
//!
//! What an event does lives in the rooms: `machine` (interrupts), `vmm` (exits, pCPUs and who is on them), `guest` (VMs
//! and their vCPUs, run queues, idle, synchronization, memory), `remedy` (consolidation). Every path through them ends
//! with the vCPU in a state that either has an end (`busy`) or waits for somebody else (`rest`).

use crate::SimError;
use crate::engine::Ps;
use crate::engine::books::{Ledgers, Parts};
use crate::engine::queue::{Queue, Slot};
use crate::engine::random::Random;
use crate::guest::allocator::Allocator;
use crate::guest::files::{Object, Touch};
use crate::guest::heap::Heap;
use crate::guest::kernel::Kernel;
use crate::guest::masked::OpenLock;
use crate::guest::run_queue_lock;
use crate::guest::sync::{Barrier, Condition, Condvar, Lock};
use crate::guest::thread::Thread;
use crate::guest::translations::Walks;
use crate::guest::vcpu::{Vcpu, VcpuState};
use crate::guest::vm::{Counters, Vm, of_vm};
use crate::io::{self, Io};
use crate::machine::interrupt::reason;
use crate::machine::lines::Cause;
use crate::machine::prices::{KvmPrices, Prices, XenPrices};
use crate::machine::smt::Smt;
use crate::machine::spinlock::{Kind, SpinLock};
use crate::machine::walk::Walk;
use crate::paging::Paging;
use crate::progress::{self, Mark};
use crate::remedy::Daemon;
use crate::vmm::idle_periods::IdlePeriods;
use crate::vmm::pcpu::{Pcpu, Scheduling, softirq};
use crate::vmm::ple::Spinning;
use crate::vmm::pm_timer::{PmTimer, PmTimerPrices};
use crate::vmm::scheduler::VmmScheduler;
use crate::vmm::shared::Shared;
use crate::working_sets::WorkingSets;
use crate::workload::program::{Base, LOOP_DEPTH, Op, Program};
use muster_model::study::{Environment, Experiment, Kvm, Pin, Remedy, VmScheduler, VmSpec, WakeSignal};
use muster_model::workload::{Buffer, Duration, Timer};
use muster_model::{Account, CpuSet, Distance, ModelError, Profile, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// No thread; no vCPU.
pub const NONE: u32 = u32::MAX;

/// Kinds of event slots.
pub mod kind {
    // The most frequent ones first: neighbours share cache lines.
    /// The end of what a vCPU does.
    pub const VCPU: u32 = 0;
    /// The end of what the VMM does on a pCPU.
    pub const PCPU: u32 = 1;
    /// A rescheduling interrupt arrives at a vCPU.
    pub const RESCHEDULE: u32 = 2;
    /// A vCPU's periodic tick.
    pub const TICK: u32 = 3;
    /// A polling vCPU or one in MWAIT notices a store.
    pub const NOTICE: u32 = 4;
    /// A vCPU that is awake and idle looks for waiting threads.
    pub const PULL: u32 = 5;
    /// A TLB shootdown's interrupt arrives at a vCPU.
    pub const FLUSH: u32 = 6;
    /// A thread's sleep ends.
    pub const TIMER: u32 = 7;
    /// An interrupt of the host tells a pCPU to schedule.
    pub const KICK: u32 = 8;
    /// The slice of the vCPU on a pCPU is over.
    pub const SLICE: u32 = 9;
    /// The tick of the VMM's scheduler on a pCPU.
    pub const HOST_TICK: u32 = 10;
    /// The VMM's scheduler hands out credits.
    pub const ACCOUNT: u32 = 11;
    /// The period of a VM's consolidation daemon ends.
    pub const DAEMON: u32 = 12;
    /// A VM's program is ended from outside.
    pub const END: u32 = 13;
    /// A receive queue interrupts.
    pub const NIC: u32 = 14;
    /// An event of another VM arrives at a vCPU.
    pub const EVENT: u32 = 15;
    /// A burst arrives at the end of a wire's lane.
    pub const LANE: u32 = 16;
    /// A client sends its next request.
    pub const CLIENT: u32 = 17;
    /// A disk has done something.
    pub const DISK: u32 = 18;
}

const KIND_BITS: u32 = 5;

/// The slot of a kind of event of a vCPU, thread, VM or pCPU.
#[inline]
pub fn slot_of(index: usize, kind: u32) -> Slot {
    (index as u32) << KIND_BITS | kind
}

/// The world.
#[derive(Debug)]
pub struct World {
    pub(crate) now: Ps,
    pub(crate) queue: Queue,
    pub(crate) ledgers: Ledgers,
    pub(crate) prices: Prices,
    /// Page walks, where translations are followed.
    pub(crate) walks: Option<Walks>,
    /// Memory virtualization, where a VM's is simulated entry by entry.
    pub(crate) paging: Option<Box<Paging>>,
    /// What caches hold, where a workload states what it goes through.
    pub(crate) working_sets: Option<Box<WorkingSets>>,
    /// Cores of several hardware threads, where their siblings' work is followed.
    pub(crate) smt: Option<Box<Smt>>,
    /// Devices, in a world that has some.
    pub(crate) io: Option<Box<Io>>,
    /// Spinning, where it is followed: kernels' spin locks are held over events then.
    pub(crate) spinning: Option<Box<Spinning>>,
    pub(crate) virtualized: bool,
    pub(crate) pcpus: Vec<Pcpu>,
    pub(crate) scheduler: VmmScheduler,
    /// What the VMM's code shares between pCPUs, and the machine's cache lines.
    pub(crate) shared: Shared,
    pub(crate) scheduling: Scheduling,
    pub(crate) idle_periods: IdlePeriods,
    /// What KVM does beside the exits; all off where it is not KVM.
    pub(crate) kvm: Kvm,
    pub(crate) kvm_prices: KvmPrices,
    pub(crate) vms: Vec<Vm>,
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) threads: Vec<Thread>,
    /// VMs whose programs have to end.
    pub(crate) unfinished: u32,
    /// By thread, where it may run now: its own vCPUs that are active.
    pub(crate) allowed: Vec<CpuSet>,
    /// By thread, its own vCPUs.
    pub(crate) pinned: Vec<CpuSet>,
    pub(crate) random: Vec<Random>,
    /// By vCPU, how late its timers are.
    pub(crate) timer_random: Vec<Random>,
    /// By thread, turns of its outermost loops that are done: its progress.
    pub(crate) turns: Vec<u64>,
    /// By thread and depth, repetitions left.
    pub(crate) loops: Vec<u32>,
    pub(crate) ops: Vec<Op>,
    pub(crate) durations: Vec<Duration>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) condvars: Vec<Condvar>,
    pub(crate) timers: Vec<Timer>,
    /// What calls for files do, and what they touch.
    pub(crate) touches: Vec<Touch>,
    pub(crate) objects: Vec<Object>,
    /// By thread, the file that it has picked of a set.
    pub(crate) picked: Vec<u32>,
    /// By vCPU, its run queue's lock, where kernels have such.
    pub(crate) run_queue_locks: Vec<SpinLock>,
    /// The page allocator, where its locks are simulated.
    pub(crate) allocator: Option<Box<Allocator>>,
    /// By timer and thread (the first for a shared timer), up to when it has been moved on.
    pub(crate) timer_next: BTreeMap<(u32, u32), Ps>,
    /// The CPUs that operations name.
    pub(crate) cpu_sets: Vec<CpuSet>,
    /// How many programs child processes execute.
    pub(crate) execs: u32,
    /// Kinds of buffers.
    pub(crate) buffers: Vec<Buffer>,
    /// By thread.
    pub(crate) heaps: Vec<Heap>,
    /// By vCPU, the vCPUs of its VM that have its last-level cache.
    pub(crate) llc: Vec<CpuSet>,
    pub(crate) events: u64,
    /// How long guests' kernels have spun for locks inside semaphores.
    pub(crate) kernel_spin: Ps,
    /// How long they have walked page tables.
    pub(crate) kernel_walks: Ps,
    /// Nothing can happen any more but the daemon's periods.
    pub(crate) stuck: bool,
    pub(crate) last_progress: Mark,
    limit: Ps,
}

impl World {
    /// The world of an experiment; `vms` are all its VMs, each with its program and the remedies in force there. `xen` are
    /// its VMM's prices, if it is Xen.
    ///
    /// # Errors
    /// When a VM may run nowhere.
    pub(crate) fn new(
        experiment: &Experiment,
        topology: &Topology,
        prices: Prices,
        xen: Option<&XenPrices>,
        walks: Option<Walks>,
        vms: Vec<(VmSpec, Program, BTreeSet<Remedy>)>,
        timeline: Option<usize>,
    ) -> Result<Self, ModelError> {
        let n = experiment.pcpus() as usize;
        let vcpus: usize = vms.iter().map(|(spec, ..)| spec.vcpus as usize).sum();
        let threads: usize = vms.iter().map(|(_, program, _)| program.threads.len()).sum();
        let specs: Vec<VmSpec> = vms.iter().map(|(spec, ..)| spec.clone()).collect();
        let skips = vms.iter().any(|(.., remedies)| remedies.contains(&Remedy::Cm));
        let scheduler = VmmScheduler::new(experiment, topology, &specs, skips)?;
        let shared = scheduler.decides();
        let mut world = Self {
            now: 0,
            queue: Queue::new(n.max(vcpus).max(threads) << KIND_BITS),
            ledgers: if shared { Ledgers::apart(vcpus, n, timeline) } else { Ledgers::common(n, timeline) },
            prices,
            walks,
            paging: None,
            working_sets: None,
            smt: None,
            io: None,
            spinning: None,
            virtualized: experiment.environment != Environment::Native,
            pcpus: (0..n).map(|p| if shared { Pcpu::idle() } else { Pcpu::with_vcpu(p) }).collect(),
            scheduler,
            shared: Shared::new(
                topology,
                n,
                vcpus,
                prices.cache_line,
                prices.cache_line[Distance::OtherNode as usize],
                prices.line_copy,
            ),
            scheduling: Scheduling::default(),
            idle_periods: IdlePeriods::default(),
            kvm: experiment.kvm.unwrap_or(Kvm::PLAIN),
            kvm_prices: KvmPrices::default(),
            vms: Vec::with_capacity(vms.len()),
            vcpus: Vec::with_capacity(vcpus),
            threads: Vec::with_capacity(threads),
            unfinished: 0,
            allowed: Vec::new(),
            pinned: Vec::new(),
            random: Vec::new(),
            timer_random: (0..vcpus as u64).map(|c| Random::new(!experiment.seed, c)).collect(),
            turns: vec![0; threads],
            loops: vec![0; threads * LOOP_DEPTH],
            ops: Vec::new(),
            durations: Vec::new(),
            locks: Vec::new(),
            barriers: Vec::new(),
            conditions: Vec::new(),
            condvars: Vec::new(),
            timers: Vec::new(),
            touches: Vec::new(),
            objects: Vec::new(),
            picked: vec![0; threads],
            run_queue_locks: Vec::new(),
            allocator: None,
            timer_next: BTreeMap::new(),
            cpu_sets: Vec::new(),
            execs: 0,
            buffers: Vec::new(),
            heaps: Vec::new(),
            llc: Vec::with_capacity(vcpus),
            events: 0,
            kernel_spin: 0,
            kernel_walks: 0,
            stuck: false,
            last_progress: Mark::default(),
            limit: (experiment.limit_s * 1e12) as Ps,
        };
        let service = experiment.service.as_ref().map(|_| vms.len() - 1);
        let kernels: Vec<Kernel> = specs.iter().map(|spec| Kernel::of(spec.guest.kernel)).collect();
        for (spec, program, remedies) in vms {
            world.add_vm(experiment, topology, &spec, program, &remedies);
            world.add_kernel_locks(topology, &kernels);
            let is_service = service == Some(world.vms.len() - 1);
            let vm = world.vms.last_mut().expect("it has just been added");
            vm.is_service = is_service;
            vm.timer_slop = xen.map(|xen| xen.timer_slop);
            if let Some(xen) = xen.filter(|_| experiment.environment == Environment::Pv) {
                vm.events = Some(OpenLock::new(Kind::TestAndSet, world.shared.lines.add()));
                vm.flush_call = Some(xen.hypercall + xen.tlb_flush_all);
            }
            // The service VM is paravirtualized: it reads the clock by itself.
            let exits = experiment.environment == Environment::Hvm && !vm.kernel.reads_tsc && !is_service;
            if let Some(xen) = xen.filter(|_| exits) {
                let intercept = world.prices.vm_exit + xen.port_io + world.prices.vm_entry;
                let prices = PmTimerPrices { intercept, update: xen.pmt_update, read: xen.pmt_read };
                let tries_lock = remedies.contains(&Remedy::Vtime);
                vm.pm_timer = Some(PmTimer::new(&mut world.shared.lines, prices, tries_lock));
            }
        }
        Ok(world)
    }

    /// Adds the devices of an experiment, whose VMs these are.
    ///
    /// # Errors
    /// When they do not fit.
    pub(crate) fn add_devices(
        &mut self,
        experiment: &Experiment,
        profile: &Profile,
        topology: &Topology,
        specs: &[VmSpec],
    ) -> Result<(), ModelError> {
        let service = self.vms.iter().position(|vm| vm.is_service);
        self.io = Io::new(&io::Plan {
            experiment,
            profile,
            topology,
            specs,
            vcpus: self.vms.iter().map(|vm| vm.vcpus.clone()).collect(),
            threads: self.threads.len(),
            service: service.map(|vm| (vm, self.vms[vm].threads.start)),
        })?;
        if let Some(io) = &self.io {
            let most = self.pcpus.len().max(self.vcpus.len()).max(self.threads.len());
            self.queue = Queue::new(most.max(io.slots()) << KIND_BITS);
        }
        Ok(())
    }

    /// Adds a VM that runs `program`, behind those that are there.
    fn add_vm(
        &mut self,
        experiment: &Experiment,
        topology: &Topology,
        spec: &VmSpec,
        program: Program,
        remedies: &BTreeSet<Remedy>,
    ) {
        let (first, vm) = (self.vcpus.len(), self.vms.len());
        let vcpus = first..first + spec.vcpus as usize;
        let threads = self.threads.len()..self.threads.len() + program.threads.len();
        let seen = seen_topology(experiment, topology, spec);
        for c in vcpus.clone() {
            self.vcpus.push(Vcpu::new(vm, self.scheduler.home(c)));
            self.llc.push(of_vm(&vcpus, &seen.llc_domain(c - first)));
        }
        let daemon = Daemon::new(experiment, spec, &seen, &self.prices);
        self.unfinished += u32::from(!spec.repeat && !threads.is_empty());
        self.random.extend(threads.clone().map(|t| Random::new(experiment.seed, t as u64)));
        let conditions = self.conditions.len()..self.conditions.len() + program.permits.len();
        let used = vcpus.start..vcpus.start + spec.used.unwrap_or(spec.vcpus) as usize;
        self.vms.push(Vm::new(spec, remedies, vcpus, threads, conditions, daemon));
        self.append(program, &used);
    }

    /// The locks of the last VM's kernel. A guest sees no nodes. Where one VM's kernel has them, all VMs' have: they are told apart
    /// by their vCPUs' numbers, and cost next to nothing where nobody contends for them.
    fn add_kernel_locks(&mut self, topology: &Topology, kernels: &[Kernel]) {
        let vm = self.vms.last().expect("it has just been added");
        let lines = &mut self.shared.lines;
        if kernels.iter().any(|kernel| kernel.run_queues_have_locks) {
            self.run_queue_locks.extend(run_queue_lock::locks(vm.vcpus.len(), lines));
        }
        if kernels.iter().any(|kernel| kernel.zones_have_locks) {
            let node = |c: usize| if self.virtualized { 0 } else { topology.cpu(c).map_or(0, |cpu| cpu.node) };
            self.allocator.get_or_insert_default().add(vm.vcpus.clone().map(node), lines);
        }
    }

    /// Puts a program's parts behind those that are there; its threads may use the vCPUs `used`.
    fn append(&mut self, program: Program, used: &Range<usize>) {
        let base = Base {
            ops: self.ops.len() as u32,
            durations: self.durations.len() as u32,
            locks: self.locks.len() as u32,
            barriers: self.barriers.len() as u32,
            conditions: self.conditions.len() as u32,
            condvars: self.condvars.len() as u32,
            timers: self.timers.len() as u32,
            cpus: self.cpu_sets.len() as u32,
            buffers: self.buffers.len() as u32,
            execs: self.execs,
            touches: self.touches.len() as u32,
            objects: self.objects.len() as u32,
        };
        self.execs += program.execs.len() as u32;
        let own = |cpus: Option<CpuSet>| cpus.map_or_else(|| used.clone().collect(), |cpus| of_vm(used, &cpus));
        for thread in &program.threads {
            self.pinned.push(own(thread.cpus));
            self.threads.push(Thread::new(thread.start + base.ops, thread.nice));
        }
        self.allowed.extend_from_slice(&self.pinned[self.allowed.len()..]);
        let vm = self.vms.last_mut().expect("the VM has just been added");
        vm.ends = program.ends.filter(|_| !vm.repeat);
        vm.timers = base.timers..base.timers + program.timers.len() as u32;
        vm.pinned = self.pinned[vm.threads.clone()].to_vec();
        self.ops.extend(program.ops.iter().map(|op| op.behind(&base)));
        self.durations.extend(program.durations);
        self.locks.extend(program.locks.iter().map(|&kind| Lock::new(kind)));
        program.kernel_locks.for_each(|lock| self.locks[(base.locks + lock) as usize].in_kernel = true);
        let behind = |touch: Touch| Touch { object: touch.object + base.objects, ..touch };
        self.touches.extend(program.touches.into_iter().map(behind));
        let lines = &mut self.shared.lines;
        self.objects.extend(program.objects.iter().map(|&spec| Object::new(spec, base.locks, lines)));
        self.barriers.extend(program.barriers.iter().map(|spec| Barrier::new(spec.parties, base.locks + spec.mutex)));
        self.condvars.resize(self.condvars.len() + program.condvars, Condvar::default());
        self.timers.extend(program.timers);
        self.buffers.extend(program.buffers);
        self.heaps.resize(self.threads.len(), Heap::default());
        self.cpu_sets.extend(program.cpus.into_iter().map(own));
        self.conditions.extend(program.permits.iter().map(|&permits| Condition::new(permits)));
    }

    /// Runs until every program that does not repeat itself has ended, or been ended.
    ///
    /// # Errors
    /// On a deadlock of a program that nobody ends, when no thread gets on, or when the limit on simulated time is reached.
    pub(crate) fn run(&mut self) -> Result<(), SimError> {
        self.start();
        self.go_on(Ps::MAX)?;
        self.ledgers.close(self.now);
        Ok(())
    }

    /// Goes on until every such program has ended, or up to the first event at or after `until`.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) fn go_on(&mut self, until: Ps) -> Result<(), SimError> {
        while self.unfinished > 0 && self.now < until {
            let Some((time, slot)) = self.queue.pop() else {
                return Err(SimError::Deadlock { after_s: self.now as f64 / 1e12, waiting: self.who_waits() });
            };
            if time > self.limit {
                return Err(SimError::Unfinished { limit_s: self.limit as f64 / 1e12 });
            }
            self.now = time;
            self.events += 1;
            self.dispatch((slot >> KIND_BITS) as usize, slot & ((1 << KIND_BITS) - 1));
            if self.stuck {
                return Err(SimError::Deadlock { after_s: self.now as f64 / 1e12, waiting: self.who_waits() });
            }
            if self.events.is_multiple_of(progress::EVENTS) {
                self.look_for_progress()?;
            }
        }
        Ok(())
    }

    #[inline]
    fn dispatch(&mut self, index: usize, kind: u32) {
        match kind {
            kind::VCPU => self.vcpu_event(index),
            kind::RESCHEDULE => {
                let exception = self.vm(index).wake_signal == WakeSignal::Exception && self.is_awake(index);
                self.interrupt(index, if exception { reason::EXCEPTION } else { reason::RESCHEDULE });
            }
            kind::FLUSH => self.flush_arrives(index),
            kind::TICK => self.tick_due(index),
            kind::NOTICE => self.notice(index),
            kind::PULL => self.pull_due(index),
            kind::TIMER => self.timer_due(index),
            kind::DAEMON => self.daemon_due(index),
            kind::PCPU => self.vmm_over(index),
            kind::KICK | kind::SLICE => self.host_interrupt(index, softirq::SCHEDULE),
            kind::HOST_TICK => self.host_tick_due(index),
            kind::ACCOUNT => self.account_due(index),
            kind::NIC => self.nic_due(index),
            kind::EVENT => self.interrupt(index, reason::DEVICE),
            kind::LANE => self.lane_due(index),
            kind::CLIENT => self.client_due(index),
            kind::DISK => self.disk_due(index),
            _ => self.end_program(index),
        }
    }

    /// What a vCPU did has ended.
    #[inline]
    fn vcpu_event(&mut self, c: usize) {
        if self.vcpus[c].ple_armed {
            return self.pause_exit(c);
        }
        match self.vcpus[c].state {
            VcpuState::Thread => {
                self.charge(c);
                self.step(c);
            }
            VcpuState::Spinning => self.spin_over(c),
            VcpuState::AwaitingAcks => {
                self.end_pauses(c);
                self.charge(c);
                self.fetch(c);
            }
            VcpuState::Masked => self.masked_over(c),
            VcpuState::Locking => self.locking_over(c),
            VcpuState::Queueing => self.queued_over(c),
            VcpuState::Interrupt => self.interrupts_handled(c),
            VcpuState::Switching => self.switched(c),
            VcpuState::Refilling => self.resume_or_interrupt(c),
            VcpuState::EnteringIdle => self.entered_idle(c),
            VcpuState::HostPolling => self.host_poll_over(c),
            VcpuState::Suspending => self.suspended(c),
            VcpuState::Polling => self.poll_over(c),
            VcpuState::Resuming => self.resumed(c),
            VcpuState::SchedulingIn => self.scheduled_in(c),
            VcpuState::LeavingIdle => self.left_idle(c),
            VcpuState::Halted | VcpuState::Mwait | VcpuState::Yielding => unreachable!("states without an end"),
        }
    }

    /// The vCPU does something that ends after `duration`.
    #[inline]
    pub(crate) fn busy(&mut self, c: usize, state: VcpuState, account: Account, duration: Ps) {
        self.work(c, state, account, duration, 0);
    }

    /// The same; what it takes besides the work are waits, which no sibling makes longer.
    #[inline]
    pub(crate) fn work(&mut self, c: usize, state: VcpuState, account: Account, work: Ps, waits: Ps) {
        self.note_awake(self.vcpus[c].pcpu as usize, true);
        let until = self.now + self.lasts(c, state, work) + waits;
        let vcpu = &mut self.vcpus[c];
        vcpu.state = state;
        vcpu.until = until;
        self.ledgers.enter(c, vcpu.pcpu as usize, self.now, account);
        self.queue.schedule(slot_of(c, kind::VCPU), until);
    }

    /// The vCPU does something until somebody else ends it.
    #[inline]
    pub(crate) fn rest(&mut self, c: usize, state: VcpuState, account: Account) {
        let is_awake = !matches!(state, VcpuState::Halted | VcpuState::Mwait);
        self.note_awake(self.vcpus[c].pcpu as usize, is_awake);
        let vcpu = &mut self.vcpus[c];
        vcpu.state = state;
        vcpu.rest_since = self.now;
        self.ledgers.enter(c, vcpu.pcpu as usize, self.now, account);
    }

    /// The VM of a vCPU.
    #[inline]
    pub(crate) fn vm(&self, c: usize) -> &Vm {
        &self.vms[self.vcpus[c].vm as usize]
    }

    /// The VM of a vCPU.
    #[inline]
    pub(crate) fn vm_mut(&mut self, c: usize) -> &mut Vm {
        &mut self.vms[self.vcpus[c].vm as usize]
    }

    /// The counts of all VMs together.
    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters { events: self.events, ..Counters::default() };
        self.vms.iter().for_each(|vm| counters += vm.counters);
        counters
    }

    /// Distance between the pCPUs of two vCPUs as an index.
    #[inline]
    pub(crate) fn apart(&self, a: usize, b: usize) -> usize {
        self.between(self.vcpus[a].pcpu as usize, self.vcpus[b].pcpu as usize)
    }

    /// Distance between two pCPUs as an index.
    #[inline]
    pub(crate) fn between(&self, a: usize, b: usize) -> usize {
        self.shared.lines.distance(a, b) as usize
    }

    /// Whether the vCPU executes guest instructions, so that an exception can reach it.
    pub(crate) fn is_awake(&self, c: usize) -> bool {
        !matches!(
            self.vcpus[c].state,
            VcpuState::Halted
                | VcpuState::HostPolling
                | VcpuState::Mwait
                | VcpuState::EnteringIdle
                | VcpuState::Suspending
                | VcpuState::Resuming
                | VcpuState::SchedulingIn
        )
    }

    /// Threads start one after the other on the vCPUs they may use, as a loop of clone(2) would place them.
    pub(crate) fn start(&mut self) {
        for t in 0..self.threads.len() {
            let c = self.first_vcpu(t);
            self.enqueue(t as u32, c);
        }
        if self.scheduler.decides() {
            self.start_vcpus();
        } else {
            (0..self.vcpus.len()).for_each(|c| self.schedule(c));
        }
        for c in (0..self.vcpus.len()).filter(|&c| self.vm(c).kernel.ticks_in_idle).collect::<Vec<_>>() {
            self.start_tick(c);
        }
        self.start_devices();
        for vm in 0..self.vms.len() {
            self.start_daemon(vm);
            if let Some(ends) = self.vms[vm].ends {
                self.queue.schedule(slot_of(vm, kind::END), ends);
            }
        }
    }

    /// A VM's program is ended from outside. Where others go on, it goes on beside them, as a load.
    fn end_program(&mut self, vm: usize) {
        let vm = &mut self.vms[vm];
        if vm.live > 0 {
            vm.runs += 1;
            vm.ended_at = self.now;
            vm.was_ended = true;
            self.unfinished -= 1;
        }
    }

    /// vCPU `c` reads the clock once, where that takes the VMM; how long that takes, and on what.
    pub(crate) fn read_clock(&mut self, c: usize) -> (Ps, Parts) {
        let vcpu = &self.vcpus[c];
        let Some(timer) = &mut self.vms[vcpu.vm as usize].pm_timer else { return (0, Parts::NONE) };
        let mut walk = Walk::new(vcpu.pcpu as usize, Cause::Vmm, self.now);
        timer.read(&mut self.shared.lines, &mut walk);
        let fetching = self.vmm_fetches(walk.pcpu, Cause::Vmm, walk.at - self.now - walk.waited);
        fetching.divide(&mut walk.parts);
        (walk.at - self.now + fetching.total(), walk.parts)
    }

    /// The program of vCPU `c`'s VM is over; it starts again if it is to repeat itself.
    pub(crate) fn program_over(&mut self, c: usize) {
        let now = self.now;
        let vm = self.vm_mut(c);
        if vm.was_ended {
            return;
        }
        vm.runs += 1;
        vm.ended_at = now;
        if !vm.repeat {
            self.unfinished -= 1;
            return;
        }
        let (threads, timers, pinned) = (vm.threads.clone(), vm.timers.clone(), vm.pinned.clone());
        let active = vm.active;
        vm.live = threads.len() as u32;
        self.timer_next.retain(|(timer, _), _| !timers.contains(timer));
        let vm = self.vm(c);
        vm.conditions.clone().for_each(|condition| self.conditions[condition].restart());
        for t in threads.clone() {
            self.threads[t].restart(now);
            self.heaps[t] = Heap::default();
            self.paging.iter_mut().for_each(|paging| paging.restart(t));
            self.pinned[t] = pinned[t - threads.start];
            self.allow(t as u32, &active);
            let target = self.first_vcpu(t);
            self.place_sleeper(t as u32, target);
            self.enqueue(t as u32, target);
            if target != c {
                self.rouse(c, target);
            }
        }
    }

    /// Where a thread starts: its VM's threads in turn on the vCPUs they may use.
    fn first_vcpu(&self, t: usize) -> usize {
        let allowed = &self.allowed[t];
        allowed.iter().nth(t % allowed.len().max(1)).expect("every thread may run somewhere")
    }
}

/// The machine as a VM's guest sees it: pinned vCPUs are as far apart as their pCPUs; others share one cache domain, for
/// all that the guest knows.
fn seen_topology(experiment: &Experiment, topology: &Topology, spec: &VmSpec) -> Topology {
    let pinned = experiment.scheduler() == VmScheduler::Pinned || spec.share.pin == Pin::Each;
    if pinned { topology.clone() } else { Topology::regular(1, 1, spec.vcpus, 1).expect("the number was validated") }
}
