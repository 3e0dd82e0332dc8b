//! Files: what calls for them touch that CPUs share, and what tells one kernel's way with files from another's.
//!
//! A call is a list of [`Touch`]es, compiled in `workload::program::calls`: it reads or writes a cache line, or takes a spin lock,
//! works, and goes on. Touches that follow within a moment are reckoned together; a lock is taken and given back in events
//! of their own. Interrupts come while it is held or spun for, as Linux's locks for files allow: then all others wait for them.
//!
//! What is a thread's own (its directories, its files, their pages) costs work and no transfer; a thread that moves to
//! another CPU pays for that with the other lines that it refills.

use super::thread::Step;
use crate::engine::{NS, Ps};
use crate::machine::lines::{LineId, Lines};
use crate::machine::walk::Walk;
use crate::workload::program::Op;
use crate::world::{NONE, World};

/// How a kernel keeps track of files. Each switch is one mechanism; all off is Linux 2.6.31.
///
/// The switches are those of PK: Boyd-Wickizer et al., "An Analysis of Linux Scalability to Many Cores", OSDI 2010, whose Figure
/// 1 lists them and whose sections are named here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileKernel {
    /// References to a dentry are counted on the core that takes and drops them (a sloppy counter, section 4.3); else in the
    /// dentry's own line (fs/dcache.c, `__d_lookup` and `dput`).
    pub sloppy_dentry_counts: bool,
    /// The same of mounts (section 4.3); else in `vfsmount.mnt_count`.
    pub sloppy_mount_counts: bool,
    /// A lookup compares a name with a dentry's under a generation count, which it reads (section 4.4); else it takes
    /// the dentry's `d_lock`.
    pub lock_free_lookup: bool,
    /// Each core has a mount table (section 4.5); else a path that comes by a mount takes `vfsmount_lock` (fs/namespace.c,
    /// `lookup_mnt`).
    pub mount_tables_per_core: bool,
    /// Each core has a list of open files (section 4.5); else opening and closing take `files_lock` (fs/file_table.c, `file_move`
    /// and `file_kill`).
    pub open_files_per_core: bool,
    /// lseek reads the size atomically (Figure 1, "Per-inode mutex"); else it takes the inode's `i_mutex` (fs/read_write.c,
    /// `generic_file_llseek`).
    pub seeks_without_mutex: bool,
    /// A page's reference count does not lie in the line of its flags (section 4.6); else whoever reads the flags has lost the line
    /// to whoever counts.
    pub page_counts_apart: bool,
    /// What is read of a super block does not lie in the line of its list of open files (section 4.6 names `page` and two
    /// structures of network devices; this one by the same rule).
    pub super_block_apart: bool,
    /// `inode_lock` and `dcache_lock` are not taken where nothing on their lists changes (section 4.7 and Figure 1, "inode lists"
    /// and "Dcache lists", which do not list the cases). Assumed here: making a dentry negative, marking an inode dirty that is
    /// never written back, and taking one out of the hash table that is not in it.
    pub spares_list_locks: bool,
}

impl FileKernel {
    /// Linux 2.6.31.
    pub const LINUX_2_6_31: Self = Self {
        sloppy_dentry_counts: false,
        sloppy_mount_counts: false,
        lock_free_lookup: false,
        mount_tables_per_core: false,
        open_files_per_core: false,
        seeks_without_mutex: false,
        page_counts_apart: false,
        super_block_apart: false,
        spares_list_locks: false,
    };

    /// PK.
    pub const PK: Self = Self {
        sloppy_dentry_counts: true,
        sloppy_mount_counts: true,
        lock_free_lookup: true,
        mount_tables_per_core: true,
        open_files_per_core: true,
        seeks_without_mutex: true,
        page_counts_apart: true,
        super_block_apart: true,
        spares_list_locks: true,
    };
}

/// What is done under a spin lock besides the lines that are written there, a handful of instructions: assumed.
const UNDER_LOCK: Ps = 20 * NS;

/// How far ahead touches are reckoned in one go: about a line's way from another node.
const AHEAD: Ps = 250 * NS;

/// The same up to a lock: it counts as taken from the moment when the touches before it are reckoned.
const AHEAD_OF_LOCK: Ps = 50 * NS;

/// An object that CPUs share: lines next to each other, of which the first may hold a spin lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectSpec {
    /// The lock in the first line.
    pub lock: Option<u32>,
    /// Lines beyond the first.
    pub more_lines: u8,
}

/// The object in the world.
#[derive(Debug, Clone, Copy)]
pub struct Object {
    /// Its lock, or [`NONE`].
    lock: u32,
    line: LineId,
}

impl Object {
    /// An object that nobody has touched; locks are numbered from `first_lock` on.
    pub fn new(spec: ObjectSpec, first_lock: u32, lines: &mut Lines) -> Self {
        let line = lines.add();
        (0..spec.more_lines).for_each(|_| {
            lines.add();
        });
        Self { lock: spec.lock.map_or(NONE, |lock| lock + first_lock), line }
    }
}

/// What a touch does with its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Nothing: it only works.
    Work,
    /// Reads one of its lines.
    Read(u8),
    /// Writes one of its lines.
    Write(u8),
    /// Takes its lock and writes so many of the further lines under it.
    Lock(u8),
}

/// One step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Touch {
    /// The object; of the file that the thread has picked, the first file's.
    pub object: u32,
    /// How far one file's object is from the next one's; 0 for what is not a file's.
    pub stride: u32,
    /// What is done with it.
    pub how: How,
    /// How long the call works after that.
    pub work: Ps,
}

impl World {
    fn touched(&self, t: usize, touch: Touch) -> Object {
        self.objects[(touch.object + touch.stride * self.picked[t]) as usize]
    }

    /// The touch that the thread has come to: that of the operation before its next one.
    fn present_touch(&self, t: usize) -> Touch {
        let Op::Touch(touch) = self.ops[self.threads[t].pc as usize - 1] else {
            unreachable!("a lock is taken and given back by a touch")
        };
        self.touches[touch as usize]
    }

    /// vCPU `c`'s thread does the touch `first` of a call, and those behind it that come within a moment.
    pub(crate) fn touch(&mut self, c: usize, first: u32) {
        let touch = self.touches[first as usize];
        self.touch_on(c, touch, self.kernel_walk(c));
    }

    fn touch_on(&mut self, c: usize, mut touch: Touch, mut walk: Walk) {
        let t = self.vcpus[c].current as usize;
        loop {
            let object = self.touched(t, touch);
            let lines = &mut self.shared.lines;
            match touch.how {
                How::Work => {}
                How::Read(line) => walk.read(object.line + LineId::from(line), lines),
                How::Write(line) => walk.write(object.line + LineId::from(line), lines),
                How::Lock(further) => {
                    let early = walk.at - self.now;
                    if early > AHEAD_OF_LOCK || (early > 0 && self.is_taken(object.lock)) {
                        // It comes back when the time has come.
                        self.threads[t].pc -= 1;
                        break;
                    }
                    if !self.try_acquire(object.lock) {
                        return self.spin_in_kernel(c, t as u32, object.lock);
                    }
                    let asked = walk.at;
                    walk.write(object.line, &mut self.shared.lines);
                    self.note_lock_wait(walk.at - asked);
                    return self.hold(c, object, further, walk);
                }
            }
            walk.at += touch.work;
            if walk.at > self.now + AHEAD {
                break;
            }
            let Op::Touch(behind) = self.ops[self.threads[t].pc as usize] else { break };
            self.threads[t].pc += 1;
            touch = self.touches[behind as usize];
        }
        self.walk_in_kernel(c, &walk, Step::InCall);
    }

    /// The thread has the lock and does what is done under it.
    fn hold(&mut self, c: usize, object: Object, further: u8, mut walk: Walk) {
        (1..=further).for_each(|line| walk.write(object.line + LineId::from(line), &mut self.shared.lines));
        walk.at += UNDER_LOCK;
        self.walk_in_kernel(c, &walk, Step::Unlock);
    }

    /// A lock that the thread has spun for is its own now: the call goes on.
    pub(crate) fn granted_in_kernel(&mut self, c: usize) {
        let t = self.vcpus[c].current as usize;
        if !matches!(self.ops[self.threads[t].pc as usize - 1], Op::Touch(_)) {
            return self.proceed(c, true);
        }
        self.note_asked(c);
        let touch = self.present_touch(t);
        let How::Lock(further) = touch.how else { unreachable!("it spun for a lock") };
        let (object, walk) = (self.touched(t, touch), self.kernel_walk(c));
        self.shared.lines.hand_over(object.line, walk.pcpu, walk.at);
        self.hold(c, object, further, walk);
    }

    /// The thread gives the lock back, which goes to the next in line, and goes on with its call.
    pub(crate) fn unlock(&mut self, c: usize) {
        let t = self.vcpus[c].current as usize;
        let touch = self.present_touch(t);
        self.hand_on(c, self.touched(t, touch).lock);
        let work = Touch { how: How::Work, ..touch };
        self.touch_on(c, work, self.kernel_walk(c));
    }

    /// The thread picks one of `count` files.
    pub(crate) fn pick_file(&mut self, t: usize, count: u32) {
        self.picked[t] = self.random[t].below(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::thread::Mode;
    use crate::run::Simulation;
    use muster_model::study::{Environment, Experiment, GuestKernel};
    use muster_model::{Profile, Workload};

    /// Threads that share a directory and its files, more of them than cores.
    fn world(kernel: GuestKernel, cores: u32) -> World {
        let machine = include_str!("../../../../machines/ixen-opteron48.toml");
        let profile = Profile::from_toml(machine, "machine").unwrap();
        let workload = r#"{"name":"w","directories":{"d":{"names":4,"mounted":true}},
            "files":{"f":{"in":"d","count":3,"pages":4}},
            "groups":[{"name":"g","count":12,"phases":[{"loop":{"times":30,"phases":[
            {"file":{"of":"f","calls":["stat-missing","create",{"write":2},"seek","close","list","rename","unlink"],"user_ns":900}}]}}]}]}"#;
        let workload = Workload::from_json(workload, "workload").unwrap();
        let experiment = Experiment { kernel: Some(kernel), ..Experiment::new(Environment::Native, cores) };
        Simulation::new(&experiment, &profile, &workload, None).unwrap().into_world()
    }

    /// The lock that a thread has at the moment, apart from those that it holds over several operations.
    fn has(world: &World, t: usize) -> Option<u32> {
        let thread = &world.threads[t];
        let in_touch = thread.pc > 0 && matches!(world.ops[thread.pc as usize - 1], Op::Touch(_));
        let has_it = match thread.mode {
            Mode::Stretch => thread.step == Step::Unlock,
            Mode::Spin => thread.granted,
            Mode::Acks => false,
        };
        (in_touch && has_it).then(|| world.touched(t, world.present_touch(t)).lock)
    }

    /// The mutex that a thread has: the last operation that takes or gives one back took it.
    fn has_mutex(world: &World, t: usize) -> Option<u32> {
        let thread = &world.threads[t];
        let waits = thread.mode == Mode::Spin && !thread.granted;
        for (back, op) in world.ops[..thread.pc as usize].iter().rev().enumerate() {
            match op {
                Op::Acquire(_) | Op::TakePicked(_) if back == 0 && waits => return None,
                Op::Acquire(lock) => return Some(*lock),
                Op::TakePicked(lock) => return Some(lock + world.picked[t]),
                Op::Release(_) | Op::GivePicked(_) | Op::Call => return None,
                _ => {}
            }
        }
        None
    }

    #[test]
    fn a_lock_is_one_threads_and_is_taken_while_it_is() {
        for (kernel, cores) in [(GuestKernel::Linux2631, 8), (GuestKernel::Pk, 8), (GuestKernel::Linux2631, 5)] {
            let mut world = world(kernel, cores);
            world.start();
            let mut contended = 0;
            while world.unfinished > 0 {
                world.go_on(world.now + 1).unwrap();
                let mut holders = vec![0; world.locks.len()];
                for t in 0..world.threads.len() {
                    has(&world, t).into_iter().chain(has_mutex(&world, t)).for_each(|lock| holders[lock as usize] += 1);
                    contended += u32::from(world.threads[t].mode == Mode::Spin);
                }
                for (lock, &holders) in holders.iter().enumerate().filter(|&(l, _)| world.locks[l].in_kernel) {
                    let taken = i32::from(world.is_taken(lock as u32));
                    assert_eq!(holders, taken, "lock {lock} at {} ps", world.now);
                }
            }
            assert!(contended > 1000, "somebody waits most of the time: {contended}");
            assert!((0..world.locks.len()).all(|lock| !world.is_taken(lock as u32)), "all are free at the end");
        }
    }
}
