//! The I/O APIC: pins at which devices signal, and the messages that it makes of that (Intel 82093AA data sheet; Dong et al.,
//! 2010, section IV.A).
//!
//! An edge makes one message. A level makes one, and is then suppressed (its *remote IRR* is set) until the CPU that got it
//! ends the interrupt; if the device still signals then, the next message follows. The end of an interrupt (EOI) reaches the
//! I/O APIC with the vector's number and without the CPU's: it ends the suppression of *every* level-triggered pin with
//! that number. Where two of them have the same number on different CPUs, one CPU's EOI so makes a message for the other's
//! interrupt, which that one is still busy with: it is redundant.
//!
//! Nothing here takes time or an event: whoever drives it decides when a message arrives.

use muster_policy::vectors::{Trigger, Vector};

/// An interrupt on its way to a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The pin that made it.
    pub pin: usize,
    /// The CPU to which it goes.
    pub pcpu: usize,
    /// Under which number.
    pub number: u8,
    /// That CPU has not ended the pin's last interrupt yet.
    pub is_redundant: bool,
}

#[derive(Debug, Clone, Copy)]
struct Pin {
    vector: Vector,
    trigger: Trigger,
    is_masked: bool,
    /// The device signals.
    is_asserted: bool,
    /// A level's message is out, and no EOI with its number has come since.
    remote_irr: bool,
    /// The CPU that got a level's message has not ended it.
    is_unended: bool,
}

impl Pin {
    /// A message, if the pin may send one.
    fn send(&mut self, pin: usize) -> Option<Message> {
        if self.is_masked || !self.is_asserted || self.remote_irr {
            return None;
        }
        let is_level = self.trigger == Trigger::Level;
        let is_redundant = is_level && self.is_unended;
        self.remote_irr = is_level;
        self.is_unended = is_level;
        Some(Message { pin, pcpu: self.vector.pcpu, number: self.vector.number, is_redundant })
    }
}

/// An I/O APIC.
#[derive(Debug, Clone, Default)]
pub struct IoApic {
    pins: Vec<Pin>,
    messages: u64,
    redundant: u64,
}

impl IoApic {
    /// One without pins in use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a device at the next pin, unmasked; which that is.
    pub fn connect(&mut self, vector: Vector, trigger: Trigger) -> usize {
        let (is_masked, is_asserted, remote_irr, is_unended) = (false, false, false, false);
        self.pins.push(Pin { vector, trigger, is_masked, is_asserted, remote_irr, is_unended });
        self.pins.len() - 1
    }

    /// The device at a pin signals (again).
    pub fn assert(&mut self, pin: usize) -> Option<Message> {
        let it = &mut self.pins[pin];
        let rises = !std::mem::replace(&mut it.is_asserted, true);
        if it.trigger == Trigger::Edge && !rises { None } else { self.send(pin) }
    }

    /// The device at a pin has nothing to say any more.
    pub fn deassert(&mut self, pin: usize) {
        self.pins[pin].is_asserted = false;
    }

    /// Keeps a pin from making messages. An edge that comes meanwhile is lost.
    pub fn mask(&mut self, pin: usize) {
        self.pins[pin].is_masked = true;
    }

    /// Lets it make them again.
    pub fn unmask(&mut self, pin: usize) -> Option<Message> {
        let it = &mut self.pins[pin];
        it.is_masked = false;
        if it.trigger == Trigger::Level { self.send(pin) } else { None }
    }

    /// The CPU `pcpu` ends an interrupt that came to it under `number`. A local APIC tells the I/O APIC of those that were
    /// level-triggered only; the messages that this makes.
    pub fn end_of_interrupt(&mut self, pcpu: usize, number: u8) -> Vec<Message> {
        let mut messages = Vec::new();
        for pin in 0..self.pins.len() {
            let it = &mut self.pins[pin];
            if it.trigger == Trigger::Edge || it.vector.number != number {
                continue;
            }
            it.is_unended &= it.vector.pcpu != pcpu;
            it.remote_irr = false;
            messages.extend(self.send(pin));
        }
        messages
    }

    /// How many messages it has made.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// How many of them were redundant.
    pub fn redundant(&self) -> u64 {
        self.redundant
    }

    fn send(&mut self, pin: usize) -> Option<Message> {
        let message = self.pins[pin].send(pin)?;
        self.messages += 1;
        self.redundant += u64::from(message.is_redundant);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_policy::vectors::{Reserved, Vectoring, Vectors};
    use proptest::prelude::*;

    const PCPUS: usize = 4;

    /// Devices on the pins of an I/O APIC, and the interrupts that CPUs are busy with or have not begun.
    struct Machine {
        ioapic: IoApic,
        vectors: Vectors,
        levels: usize,
        waiting: Vec<Message>,
    }

    impl Machine {
        fn new(vectoring: Vectoring, pins: &[(Trigger, usize)]) -> Self {
            let mut machine = Self {
                ioapic: IoApic::new(),
                vectors: Vectors::new(vectoring, PCPUS, &Reserved::default()).unwrap(),
                levels: 0,
                waiting: Vec::new(),
            };
            for (source, &(trigger, pcpu)) in pins.iter().enumerate() {
                let vector = machine.vectors.allocate(source as u32, trigger, Some(pcpu)).unwrap();
                assert_eq!(machine.ioapic.connect(vector, trigger), source);
                machine.levels += usize::from(trigger == Trigger::Level);
            }
            machine
        }

        fn assert(&mut self, pin: usize) {
            let message = self.ioapic.assert(pin);
            self.waiting.extend(message);
        }

        /// A CPU handles one of its interrupts: it asks the device, which falls silent, and ends the interrupt.
        fn handle(&mut self, index: usize, asks_device: bool) {
            let message = self.waiting.remove(index);
            let source = self.vectors.source(message.pcpu, message.number).expect("the remap table knows it");
            assert_eq!(source as usize, message.pin, "it is taken for the right device's");
            if asks_device {
                self.ioapic.deassert(message.pin);
            }
            if self.ioapic.pins[message.pin].trigger == Trigger::Level {
                let more = self.ioapic.end_of_interrupt(message.pcpu, message.number);
                self.waiting.extend(more);
            }
        }
    }

    #[test]
    fn another_cpus_end_of_interrupt_makes_a_redundant_message_unless_levels_are_global() {
        for (vectoring, redundant) in [(Vectoring::PerPcpu, 1), (Vectoring::Hybrid, 0), (Vectoring::Global, 0)] {
            let mut machine = Machine::new(vectoring, &[(Trigger::Level, 0), (Trigger::Level, 1)]);
            machine.assert(0);
            machine.assert(1);
            assert_eq!(machine.ioapic.assert(0), None, "it is suppressed");
            // CPU 1 is done while CPU 0 has not asked its device yet.
            machine.handle(1, true);
            assert_eq!(machine.ioapic.redundant(), redundant, "{vectoring:?}");
            while !machine.waiting.is_empty() {
                machine.handle(0, true);
            }
            assert_eq!(machine.ioapic.messages(), 2 + redundant, "{vectoring:?}");
        }
    }

    #[test]
    fn a_level_that_stays_is_sent_again_after_its_end_and_a_masked_pin_is_silent() {
        let mut machine = Machine::new(Vectoring::Hybrid, &[(Trigger::Level, 2), (Trigger::Edge, 2)]);
        machine.assert(0);
        machine.handle(0, false);
        assert_eq!((machine.ioapic.messages(), machine.waiting.len(), machine.ioapic.redundant()), (2, 1, 0));
        machine.handle(0, true);
        (0..2).for_each(|pin| machine.ioapic.mask(pin));
        (0..2).for_each(|pin| machine.assert(pin));
        assert!(machine.waiting.is_empty());
        assert_eq!((machine.ioapic.unmask(0).map(|message| message.pin), machine.ioapic.unmask(1)), (Some(0), None));
    }

    proptest! {
        /// Whatever happens in whatever order: no redundant message where level-triggered sources have numbers of their own,
        /// and no level is forgotten: when all is handled, every device has been asked.
        #[test]
        fn hybrid_vectoring_makes_no_redundant_message(
            which in 0usize..3,
            pins in proptest::collection::vec((any::<bool>(), 0..PCPUS), 1..12),
            steps in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..4), 0..300)
        ) {
            let vectoring = [Vectoring::Global, Vectoring::PerPcpu, Vectoring::Hybrid][which];
            let trigger = |level: bool| if level { Trigger::Level } else { Trigger::Edge };
            let pins: Vec<_> = pins.into_iter().map(|(level, pcpu)| (trigger(level), pcpu)).collect();
            let mut machine = Machine::new(vectoring, &pins);
            for (index, what) in steps {
                match what {
                    0 | 1 => machine.assert(index.index(pins.len())),
                    what if !machine.waiting.is_empty() => {
                        let index = index.index(machine.waiting.len());
                        machine.handle(index, what == 2);
                    }
                    _ => {}
                }
                let levels = machine.waiting.iter().filter(|message| pins[message.pin].0 == Trigger::Level);
                if vectoring != Vectoring::PerPcpu {
                    prop_assert_eq!(machine.ioapic.redundant(), 0);
                    prop_assert!(levels.count() <= machine.levels, "one at a time");
                }
            }
            while !machine.waiting.is_empty() {
                machine.handle(0, true);
            }
            let silent = machine.ioapic.pins.iter().all(|pin| pin.trigger == Trigger::Edge || !pin.is_asserted);
            prop_assert!(silent, "every level was handled");
        }

        /// Per-pCPU vectoring makes some as soon as pins of several CPUs are busy at once.
        #[test]
        fn per_pcpu_vectoring_makes_some(order in Just((0..8).collect::<Vec<usize>>()).prop_shuffle()) {
            let pins: Vec<_> = (0..8).map(|pin| (Trigger::Level, pin % PCPUS)).collect();
            let mut machine = Machine::new(Vectoring::PerPcpu, &pins);
            order.iter().for_each(|&pin| machine.assert(pin));
            machine.handle(0, true);
            prop_assert_eq!(machine.ioapic.redundant(), PCPUS as u64 - 1, "of all that have its number");
        }
    }
}
