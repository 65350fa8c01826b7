//! The registers that need a fixed place in a stage.

use hashbrown::HashSet;
use kiln_plan::tile::{Inst, Stage, TileProgram};

/// Returns, for each stage, the registers that are more than names of values within one tile: accumulators, and
/// registers that this or a later stage reads before writing them.
///
/// A register that several stages write first is a different value in each. So each stage may read it in place from
/// memory, or write it directly to its destination.
pub(super) fn fixed(program: &TileProgram) -> Vec<HashSet<u16>> {
    let mut stages: Vec<HashSet<u16>> = Vec::new();
    // The registers that later stages read before they write them.
    let mut wanted: HashSet<u16> = HashSet::new();
    for stage in program.stages.iter().rev() {
        let uses = Uses::of(stage);
        let fixed = wanted
            .iter()
            .chain(&uses.entering)
            .chain(&uses.accumulators);
        stages.push(fixed.copied().collect());
        wanted.retain(|r| !uses.written.contains(r));
        wanted.extend(uses.entering);
    }
    stages.reverse();
    stages
}

#[derive(Default)]
struct Uses {
    /// The registers that are read before they are written.
    entering: HashSet<u16>,
    written: HashSet<u16>,
    accumulators: HashSet<u16>,
}

impl Uses {
    fn of(stage: &Stage) -> Uses {
        let mut uses = Uses::default();
        for inst in &stage.code {
            let (reads, writes) = inst.operands();
            let (reads, writes) = (reads.iter().map(|r| r.0), writes.iter().map(|r| r.0));
            let entering = reads.filter(|r| !uses.written.contains(r));
            uses.entering.extend(entering);
            uses.written.extend(writes.clone());
            if matches!(inst, Inst::Reduce { .. } | Inst::ArgReduce { .. }) {
                uses.accumulators.extend(writes);
            }
        }
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_base::prim::{Binary, Reduction, Unary};
    use kiln_base::{Compute, Dim, Scalar};
    use kiln_plan::tile::{Dynamic, Reg, Schedule, SerialPoints};

    const R: [Reg; 5] = [Reg(0), Reg(1), Reg(2), Reg(3), Reg(4)];

    fn fixed_in(stages: Vec<(bool, Vec<Inst>)>) -> Vec<Vec<u16>> {
        let stages = stages.into_iter();
        let program = TileProgram {
            name: "t".into(),
            axes: vec![],
            inner: vec![],
            serial: 0,
            schedule: Schedule::Rows,
            sizes: Default::default(),
            args: vec![],
            accesses: vec![],
            registers: vec![Compute::F32; R.len()],
            constants: vec![(R[4], Scalar::Float(1.0))],
            slots: vec![],
            stages: stages
                .map(|(over_inner, code)| Stage {
                    over_inner,
                    serial_points: SerialPoints::Every,
                    code,
                })
                .collect(),
            sites: 0,
        };
        let sorted = |s: HashSet<u16>| {
            let mut s: Vec<u16> = s.into_iter().collect();
            s.sort();
            s
        };
        fixed(&program).into_iter().map(sorted).collect()
    }

    fn load(dst: Reg) -> Inst {
        Inst::Load { dst, access: 0 }
    }

    fn store(src: Reg) -> Inst {
        Inst::Store { access: 1, src }
    }

    fn sum(acc: Reg, a: Reg) -> Inst {
        let op = Reduction::Sum;
        Inst::Reduce { op, acc, a }
    }

    fn neg(dst: Reg, a: Reg) -> Inst {
        let op = Unary::Neg;
        Inst::Unary { op, dst, a }
    }

    fn add(dst: Reg, a: Reg, b: Reg) -> Inst {
        let (op, site) = (Binary::Add, 0);
        Inst::Binary {
            op,
            dst,
            a,
            b,
            site,
        }
    }

    #[test]
    fn a_register_that_every_stage_writes_first_is_free_in_each() {
        let stages = vec![
            (true, vec![load(R[0]), sum(R[1], R[0])]),
            (true, vec![load(R[0]), add(R[2], R[0], R[1]), store(R[2])]),
        ];
        assert_eq!(fixed_in(stages), [[1], [1]]);
    }

    #[test]
    fn a_register_is_fixed_from_where_a_later_stage_gets_it() {
        let stages = vec![
            // Here R0 is only a name, although it is a row's value afterwards.
            (true, vec![load(R[0]), sum(R[1], R[0])]),
            (false, vec![neg(R[0], R[1])]),
            (true, vec![load(R[2]), store(R[2])]),
            (true, vec![load(R[2]), add(R[3], R[2], R[0]), store(R[3])]),
        ];
        let fixed = fixed_in(stages);
        assert_eq!(fixed, [vec![1], vec![0, 1], vec![0], vec![0]]);
    }

    #[test]
    fn constants_are_fixed_and_the_indices_of_gathers_are_not() {
        let dynamic = vec![Dynamic {
            index: R[0],
            stride: Dim::Const(1),
            extent: Dim::Const(1),
            site: 0,
        }];
        let gather = Inst::LoadAt {
            dst: R[1],
            access: 0,
            dynamic,
        };
        let stages = vec![
            (true, vec![load(R[0]), store(R[0])]),
            (
                true,
                vec![load(R[0]), gather, add(R[2], R[1], R[4]), store(R[2])],
            ),
        ];
        assert_eq!(fixed_in(stages), [vec![4], vec![4]]);
    }
}
