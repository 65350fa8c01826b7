//! Programs with a description of their arguments, states and results.
//!
//! A [`Plan`] numbers its inputs and outputs: recordings of one structure share it, whatever the numbers refer to. A
//! [`Signature`] describes that. An [`Entry`] is both, and is what leaves the process. A run of an entry
//!
//! 1. passes the plan the arguments, the captured tensors, the contents of each state, and a key for each draw
//!    ([`Signature::keys`]);
//! 2. takes the results, and the new contents of each state, from the plan's outputs.

use crate::contract::contradiction;
use crate::{Contradiction, Plan};
use kiln_base::{Dim, Role, Sym};
use serde::{Deserialize, Serialize};

/// A program with its signature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The meaning of the inputs and outputs.
    pub signature: Signature,
    /// The program. Dtypes and shapes are those of its inputs and outputs.
    pub plan: Plan,
}

/// The meaning of the inputs and outputs of a plan, each of them once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The inputs that are passed in each run, in the function's order.
    pub arguments: Vec<Named>,
    /// The inputs that are tensors captured by the function: the same in every run.
    pub captured: Vec<Named>,
    /// The values kept from run to run.
    pub states: Vec<State>,
    /// The uses of the generator of random numbers, in the order in which they draw.
    pub draws: Vec<Draw>,
    /// The outputs that each run returns, in the function's order.
    pub results: Vec<Named>,
}

/// An input or output with its name, which is unique in its list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The name. Of an argument or result, its path in the function's arguments or results, such as `1.weight`; empty
    /// if that is a single tensor.
    pub name: String,
    /// The index among the plan's inputs or outputs.
    pub at: u32,
}

/// A value kept from run to run: a parameter, a running statistic, a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name, such as `fc.weight`, unique among the states.
    pub name: String,
    /// The input with its value before a run; `None` if the run does not depend on that.
    pub input: Option<u32>,
    /// The output with its value after a run; `None` if the value is unchanged. If the input is the output's donor, its
    /// memory may be donated.
    pub output: Option<u32>,
}

/// A use of the generator of random numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draw {
    /// The number of random numbers that it draws.
    pub count: Dim,
    /// The input that is its key; `None` if no kernel reads the numbers, which are still drawn.
    pub input: Option<u32>,
}

impl Signature {
    /// Returns the key of each draw, a seed and its first offset, for these values of the plan's symbols. If there are
    /// any draws, `reserve` is called with the number of offsets that all of them take; it returns the seed, and the
    /// first offset. The result is `None` if an i64 does not hold that number.
    pub fn keys(
        &self,
        symbols: &[i64],
        reserve: impl FnOnce(i64) -> [i64; 2],
    ) -> Option<Vec<[i64; 2]>> {
        let mut firsts = Vec::with_capacity(self.draws.len());
        let mut total = 0i64;
        for draw in &self.draws {
            firsts.push(total);
            total = total.checked_add(draw.count.eval_checked(symbols)?)?;
        }
        if firsts.is_empty() {
            return Some(Vec::new());
        }
        let [seed, offset] = reserve(total);
        let key = |first| [seed, offset.wrapping_add(first)];
        Some(firsts.into_iter().map(key).collect())
    }

    /// Checks that it is a signature of this plan.
    ///
    /// # Errors
    /// If names in a list are equal, if an input or output of the plan has no meaning or two, if a state would have
    /// another dtype or shape after a run than before, or if the inputs that are keys of random numbers are not those
    /// of its draws.
    pub fn check(&self, plan: &Plan) -> Result<(), Contradiction> {
        self.check_names_differ()?;
        let (mut inputs, mut outputs) = (indices(&self.arguments), indices(&self.results));
        inputs.extend(indices(&self.captured));
        inputs.extend(self.states.iter().filter_map(|s| s.input));
        outputs.extend(self.states.iter().filter_map(|s| s.output));
        let mut keys: Vec<u32> = self.draws.iter().filter_map(|d| d.input).collect();
        keys.sort_unstable();
        inputs.extend(&keys);
        check_each_once("inputs", inputs, plan.inputs.len())?;
        check_each_once("outputs", outputs, plan.outputs.len())?;
        self.states.iter().try_for_each(|s| s.check(plan))?;
        let inputs_by_index = (0..).zip(&plan.inputs);
        let expected =
            inputs_by_index.filter_map(|(i, input)| (input.role == Role::RandomKey).then_some(i));
        if !keys.into_iter().eq(expected) {
            return Err(contradiction!(
                "the keys of draws are other inputs than the plan's"
            ));
        }
        let mut symbols = self.draws.iter().flat_map(|d| d.count.symbols());
        match symbols.find(|s| s.0 as usize >= plan.symbols.len()) {
            Some(Sym(s)) => Err(contradiction!("a draw counts by symbol {s}, which is none")),
            None => Ok(()),
        }
    }

    fn check_names_differ(&self) -> Result<(), Contradiction> {
        for (list, mut names) in [
            ("arguments", names(&self.arguments)),
            ("captured tensors", names(&self.captured)),
            ("states", self.states.iter().map(|s| &s.name[..]).collect()),
            ("results", names(&self.results)),
        ] {
            names.sort_unstable();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(contradiction!("two {list} are called `{}`", pair[0]));
            }
        }
        Ok(())
    }
}

impl State {
    /// Checks that it is the same before and after a run. Its input and output exist.
    fn check(&self, plan: &Plan) -> Result<(), Contradiction> {
        let name = &self.name;
        let before = self.input.map(|i| &plan.inputs[i as usize]);
        let after = self.output.map(|o| &plan.outputs[o as usize]);
        match (before, after) {
            (Some(b), Some(a)) if (b.dtype, &b.shape) != (a.dtype, &a.shape) => {
                Err(contradiction!("state {name} changes its dtype or shape"))
            }
            (None, None) => Err(contradiction!(
                "state {name} has neither an input nor an output"
            )),
            _ => Ok(()),
        }
    }
}

fn names(list: &[Named]) -> Vec<&str> {
    list.iter().map(|n| &n.name[..]).collect()
}

fn indices(list: &[Named]) -> Vec<u32> {
    list.iter().map(|n| n.at).collect()
}

fn check_each_once(list: &str, mut indices: Vec<u32>, count: usize) -> Result<(), Contradiction> {
    indices.sort_unstable();
    match indices.into_iter().map(|index| index as usize).eq(0..count) {
        true => Ok(()),
        false => Err(contradiction!(
            "not each of {count} {list} has exactly one meaning"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::mended;
    use crate::{Allocation, Buffer, BufferId, DecodeError, Input, Output, Symbol};
    use kiln_base::DType;

    fn named(name: &str, at: u32) -> Named {
        let name = name.into();
        Named { name, at }
    }

    fn state(name: &str, input: Option<u32>, output: Option<u32>) -> State {
        let name = name.into();
        State {
            name,
            input,
            output,
        }
    }

    /// Returns an entry of `[n]` and two weights, with a key and numbers that nothing reads.
    fn entry() -> Entry {
        let n = Plan::symbol(0);
        let mut plan = Plan::default();
        let mut buffer = |dtype, len: &Dim, allocation| {
            plan.buffers.push(Buffer {
                dtype,
                len: len.clone(),
                allocation,
            });
            BufferId(plan.buffers.len() as u32 - 1)
        };
        let (f, i) = (DType::F32, DType::I64);
        for (dtype, dim, role) in [
            (f, n.clone(), Role::Data),
            (f, Dim::Const(3), Role::Parameter),
            (f, Dim::Const(3), Role::Parameter),
            (i, Dim::Const(2), Role::RandomKey),
        ] {
            plan.inputs.push(Input {
                dtype,
                buffer: buffer(dtype, &dim, Allocation::Input),
                shape: vec![dim],
                role,
            });
        }
        for dim in [n.clone(), Dim::Const(3)] {
            plan.outputs.push(Output {
                dtype: f,
                buffer: buffer(f, &dim, Allocation::Output),
                shape: vec![dim],
                donor: None,
            });
        }
        plan.symbols.push(Symbol {
            name: "n".into(),
            min: 2,
            input: 0,
            axis: 0,
        });
        let draw = |count, input| Draw { count, input };
        let signature = Signature {
            arguments: vec![named("", 0)],
            captured: vec![named("fc.weight", 1)],
            states: vec![state("fc.weight", Some(2), Some(1))],
            draws: vec![draw(&n * &n, None), draw(n, Some(3))],
            results: vec![named("", 0)],
        };
        Entry { signature, plan }
    }

    #[test]
    fn entries_are_read_as_they_were_written() {
        let entry = entry();
        assert_eq!(Entry::from_bytes(&entry.to_bytes()), Ok(entry.clone()));
        let found = Plan::from_bytes(&entry.to_bytes());
        assert_eq!(found, Err(DecodeError::SomethingElse("plan")));
        let found = Entry::from_bytes(&entry.plan.to_bytes());
        assert_eq!(found, Err(DecodeError::SomethingElse("entry")));
    }

    #[test]
    fn keys_are_consecutive_and_there_is_one_for_each_draw() {
        let Entry { signature, .. } = entry();
        let reserve = |count| {
            assert_eq!(count, 20);
            [7, 100]
        };
        let keys = signature.keys(&[4], reserve);
        assert_eq!(keys, Some(vec![[7, 100], [7, 116]]));
        assert_eq!(signature.keys(&[i64::MAX], |_| unreachable!()), None);
        let without = Signature::default();
        assert_eq!(without.keys(&[4], |_| unreachable!()), Some(Vec::new()));
    }

    #[test]
    fn damage_behind_the_checksum_is_found_or_harmless() {
        let bytes = entry().to_bytes();
        let mut read = 0;
        for (at, bit) in (20..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(Entry::from_bytes(&damaged).is_err());
            if let Ok(entry) = Entry::from_bytes(&mended(damaged)) {
                read += 1;
                let _ = entry.signature.keys(&[4], |_| [0; 2]);
            }
        }
        assert!(read > 0);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        type Wrong = (fn(&mut Entry), &'static str);
        let wrong: [Wrong; 10] = [
            (|e| e.signature.arguments[0].at = 4, "each of 4 inputs"),
            (|e| e.signature.captured[0].at = 0, "each of 4 inputs"),
            (|e| e.signature.draws[1].input = None, "each of 4 inputs"),
            (|e| e.signature.results.clear(), "each of 2 outputs"),
            (
                |e| e.signature.results.push(named("", 2)),
                "two results are called ``",
            ),
            (
                |e| e.signature.states.push(state("b", None, None)),
                "state b has neither",
            ),
            (
                |e| e.plan.outputs[1].dtype = DType::F64,
                "state fc.weight changes",
            ),
            (
                |e| e.plan.inputs[2].shape.push(Dim::Const(1)),
                "state fc.weight changes",
            ),
            (|e| e.plan.inputs[3].role = Role::Data, "the keys of draws"),
            (|e| e.plan.symbols.clear(), "a draw counts"),
        ];
        for (change, what) in wrong {
            let mut entry = entry();
            change(&mut entry);
            let found = Entry::from_bytes(&entry.to_bytes()).unwrap_err();
            assert!(found.to_string().contains(what), "{found}, not {what}");
        }
    }
}
