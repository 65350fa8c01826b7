//! Live ranges of registers across stages.

use hashbrown::HashSet;
use kiln_plan::tile::{Inst, Stage, TileProgram};

/// Returns, for each stage, the registers whose values outlive one tile: accumulators, and registers that are live into
/// this or a later stage.
///
/// Other registers are redefined in each stage, so a stage may read such a value directly from memory, or write it
/// directly to its destination.
pub(super) fn fixed_registers(program: &TileProgram) -> Vec<HashSet<u16>> {
    let mut stages: Vec<HashSet<u16>> = Vec::new();
    // The registers that are live into a later stage.
    let mut live_out: HashSet<u16> = HashSet::new();
    for stage in program.stages.iter().rev() {
        let uses = Uses::of(stage);
        let fixed = live_out
            .iter()
            .chain(&uses.live_in)
            .chain(&uses.accumulators);
        stages.push(fixed.copied().collect());
        live_out.retain(|r| !uses.written.contains(r));
        live_out.extend(uses.live_in);
    }
    stages.reverse();
    stages
}

#[derive(Default)]
struct Uses {
    /// The registers that are read before they are written.
    live_in: HashSet<u16>,
    written: HashSet<u16>,
    accumulators: HashSet<u16>,
}

impl Uses {
    fn of(stage: &Stage) -> Uses {
        let mut uses = Uses::default();
        for inst in &stage.code {
            let (reads, writes) = inst.operands();
            let (reads, writes) = (reads.iter().map(|r| r.0), writes.iter().map(|r| r.0));
            let live_in = reads.filter(|r| !uses.written.contains(r));
            uses.live_in.extend(live_in);
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
    use kiln_plan::tile::{Dynamic, Reg, Schedule};

    const R: [Reg; 5] = [Reg(0), Reg(1), Reg(2), Reg(3), Reg(4)];

    fn fixed_in(stages: Vec<(bool, Vec<Inst>)>) -> Vec<Vec<u16>> {
        let stages = stages.into_iter();
        let program = TileProgram {
            schedule: Schedule::Rows,
            registers: vec![Compute::F32; R.len()],
            constants: vec![(R[4], Scalar::Float(1.0))],
            stages: stages
                .map(|(over_inner, code)| Stage {
                    over_inner,
                    code,
                    ..Stage::default()
                })
                .collect(),
            ..TileProgram::default()
        };
        let sorted = |s: HashSet<u16>| {
            let mut s: Vec<u16> = s.into_iter().collect();
            s.sort();
            s
        };
        fixed_registers(&program).into_iter().map(sorted).collect()
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
    fn a_register_that_each_stage_writes_first_is_not_fixed() {
        let stages = vec![
            (true, vec![load(R[0]), sum(R[1], R[0])]),
            (true, vec![load(R[0]), add(R[2], R[0], R[1]), store(R[2])]),
        ];
        assert_eq!(fixed_in(stages), [[1], [1]]);
    }

    #[test]
    fn a_register_that_a_later_stage_reads_is_fixed_from_its_definition_on() {
        let stages = vec![
            // R0 is defined anew in the next stage, so it is not fixed here.
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
