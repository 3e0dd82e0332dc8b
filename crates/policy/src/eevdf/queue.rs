//! Virtual time: entities that compete on one run queue, and which of them is next.
//!
//! An entity is a vCPU within its domain's queue, or a domain within its pCPU's. Its *virtual run time* is its run time by its
//! weight; the queue's average of those is where all would be had they run at once. Who is not beyond the average is owed time
//! and *eligible*; of the eligible the one with the earliest virtual deadline runs.

/// An entity, by number over all queues.
pub(super) type Id = u32;
/// No entity.
pub(super) const NONE: Id = Id::MAX;

/// The weight at which virtual time is real time (NICE_0_LOAD, as 64-bit kernels scale it).
pub(super) const NICE_0: u64 = 1 << 20;

/// One competitor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entity {
    /// The vCPU or group that it stands for.
    pub owner: u32,
    pub weight: u64,
    pub vruntime: i64,
    pub deadline: i64,
    /// Off the queue: how far behind the average it left.
    pub lag: i64,
    pub queued: bool,
}

impl Entity {
    pub fn new(owner: u32, weight: u64) -> Self {
        Self { owner, weight, vruntime: 0, deadline: 0, lag: 0, queued: false }
    }

    /// Real time as its virtual time; up to two hours at once.
    #[inline]
    pub fn virtual_of(&self, ns: u64) -> i64 {
        ((ns.min(1 << 43) << 20) / self.weight) as i64
    }

    /// Its virtual time as real time.
    pub fn real_of(&self, of: i64) -> i64 {
        (i128::from(of) * i128::from(self.weight) / i128::from(NICE_0)) as i64
    }
}

/// The entities that are runnable in one place, the running one included (`struct cfs_rq`).
#[derive(Debug, Clone)]
pub(super) struct Queue {
    members: Vec<Id>,
    current: Id,
    /// The current one is not preempted before its deadline while it is eligible (RUN_TO_PARITY).
    is_protected: bool,
    /// Who is to go first if it is eligible: somebody has yielded to it.
    buddy: Id,
    /// The average when the queue was last empty.
    origin: i64,
    weight: u64,
}

/// What the members weigh, and how far beyond the origin they are in all.
struct Sum {
    weight: i128,
    beyond: i128,
}

impl Queue {
    pub fn new() -> Self {
        Self { members: Vec::new(), current: NONE, is_protected: false, buddy: NONE, origin: 0, weight: 0 }
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn members(&self) -> &[Id] {
        &self.members
    }

    /// What its members weigh together.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    #[inline]
    fn sum(&self, entities: &[Entity]) -> Sum {
        let beyond = |&id: &Id| {
            let entity = &entities[id as usize];
            i128::from(entity.vruntime - self.origin) * i128::from(entity.weight)
        };
        Sum { weight: i128::from(self.weight), beyond: self.members.iter().map(beyond).sum() }
    }

    /// The average of its members' virtual run times (`avg_vruntime`).
    #[inline]
    pub fn average(&self, entities: &[Entity]) -> i64 {
        match self.members[..] {
            [] => self.origin,
            [only] => entities[only as usize].vruntime,
            _ => {
                let Sum { weight, beyond } = self.sum(entities);
                // Towards the past, so that somebody is always eligible.
                self.origin + beyond.div_euclid(weight) as i64
            }
        }
    }

    /// An entity joins with the lag that it left with (`place_entity`, PLACE_LAG): since it moves the average itself, more of
    /// it. `initial`: a new one's first request is for half a slice (PLACE_DEADLINE_INITIAL).
    pub fn place(&mut self, entities: &mut [Entity], id: Id, slice_ns: u64, initial: bool) {
        let average = self.average(entities);
        let entity = &mut entities[id as usize];
        debug_assert!(!entity.queued, "an entity is on a queue once");
        let lag = match self.members.is_empty() {
            true => 0,
            false => {
                let with = i128::from(self.weight + entity.weight);
                (i128::from(entity.lag) * with / i128::from(self.weight)) as i64
            }
        };
        let slice = entity.virtual_of(slice_ns);
        entity.vruntime = average - lag;
        entity.deadline = entity.vruntime + if initial { slice / 2 } else { slice };
        entity.queued = true;
        self.weight += entity.weight;
        self.members.push(id);
    }

    /// An entity leaves; its lag goes with it, within `limit_ns` to either side (`update_entity_lag`).
    pub fn remove(&mut self, entities: &mut [Entity], id: Id, limit_ns: u64) {
        let average = self.average(entities);
        let entity = &mut entities[id as usize];
        let limit = entity.virtual_of(limit_ns);
        entity.lag = (average - entity.vruntime).clamp(-limit, limit);
        entity.queued = false;
        self.weight -= entity.weight;
        let at = self.members.iter().position(|&member| member == id).expect("the entity is on this queue");
        self.members.swap_remove(at);
        if self.members.is_empty() {
            self.origin = average;
        }
        if self.current == id {
            self.leave_current();
        }
        if self.buddy == id {
            self.buddy = NONE;
        }
    }

    /// An entity weighs something else from now on; the time it is owed and what is left of its request stay
    /// (`reweight_entity`).
    pub fn reweight(&mut self, entities: &mut [Entity], id: Id, weight: u64) {
        let Entity { weight: old, queued, .. } = entities[id as usize];
        if old == weight {
            return;
        }
        let scaled = |time: i64| (i128::from(time) * i128::from(old) / i128::from(weight)) as i64;
        if queued {
            let average = self.average(entities);
            let entity = &mut entities[id as usize];
            let left = scaled(entity.deadline - entity.vruntime);
            entity.vruntime = average - scaled(average - entity.vruntime);
            entity.deadline = entity.vruntime + left;
            self.weight = self.weight - old + weight;
        }
        let entity = &mut entities[id as usize];
        entity.lag = scaled(entity.lag);
        entity.weight = weight;
    }

    /// The current entity has run; whether it has come to its deadline, and asks for another slice (`update_deadline`).
    #[inline]
    pub fn advance(&mut self, entities: &mut [Entity], id: Id, ran_ns: u64, slice_ns: u64) -> bool {
        let entity = &mut entities[id as usize];
        entity.vruntime += entity.virtual_of(ran_ns);
        let is_over = entity.vruntime >= entity.deadline;
        if is_over {
            entity.deadline = entity.vruntime + entity.virtual_of(slice_ns);
            self.is_protected = false;
        }
        is_over
    }

    /// Who is next (`pick_eevdf`, and `pick_next_entity` for the buddy).
    #[inline]
    pub fn pick(&self, entities: &[Entity]) -> Option<Id> {
        if self.members.len() <= 1 {
            return self.members.first().copied();
        }
        let Sum { weight, beyond } = self.sum(entities);
        let is_eligible = |id: Id| i128::from(entities[id as usize].vruntime - self.origin) * weight <= beyond;
        if self.buddy != NONE && is_eligible(self.buddy) {
            return Some(self.buddy);
        }
        if self.current != NONE && self.is_protected && is_eligible(self.current) {
            return Some(self.current);
        }
        let eligible = self.members.iter().copied().filter(|&id| is_eligible(id));
        // Of two with one deadline the waiting one goes first.
        eligible.min_by_key(|&id| (entities[id as usize].deadline, id == self.current, id))
    }

    /// The entity runs from now on.
    #[inline]
    pub fn set_current(&mut self, id: Id) {
        if self.current != id {
            (self.current, self.is_protected) = (id, true);
        }
        if self.buddy == id {
            self.buddy = NONE;
        }
    }

    /// Nobody of this queue runs.
    pub fn leave_current(&mut self) {
        (self.current, self.is_protected) = (NONE, false);
    }

    /// Somebody has yielded to this one.
    pub fn set_buddy(&mut self, id: Id) {
        self.buddy = id;
    }

    /// The current entity gives way: it asks for a slice more, later (`yield_task_fair`).
    pub fn defer(&mut self, entities: &mut [Entity], id: Id, slice_ns: u64) {
        let entity = &mut entities[id as usize];
        entity.deadline += entity.virtual_of(slice_ns);
        self.is_protected = false;
    }

    /// The time in nanoseconds that a member is owed; negative when it has had too much.
    pub fn owed_ns(&self, entities: &[Entity], id: Id) -> i64 {
        let entity = &entities[id as usize];
        entity.real_of(self.average(entities) - entity.vruntime)
    }
}
