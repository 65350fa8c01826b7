//! Loops and branches, which run programs, and collective operations.

use super::{Assembler, Keeps, WorkParts};
use crate::flow::{Nid, Op};
use crate::fuse::{Anchor, Group};
use crate::work::Body;
use crate::{Hints, LowerError, Program};
use kiln_ir::{Op as IrOp, ops};
use kiln_plan::{self as plan, Plan};

impl Assembler<'_> {
    /// Returns the work of a loop, branch or collective operation. Bodies become plans when memory is planned.
    pub(super) fn control(&self, group: &Group, anchor: &Anchor) -> Result<WorkParts, LowerError> {
        let node = &self.flow.nodes[anchor.node];
        let mut nodes: Vec<Nid> = Vec::new();
        let operands = anchor.operands.iter().map(|o| {
            let position = nodes.iter().position(|n| *n == o.held);
            position.unwrap_or_else(|| {
                nodes.push(o.held);
                nodes.len() - 1
            }) as u16
        });
        let operands: Vec<u16> = operands.collect();
        let reads = nodes.len();
        nodes.extend(group.roots.iter().map(|(n, _)| *n));
        let outputs: Vec<u16> = (reads as u16..nodes.len() as u16).collect();
        let Op::Control(op) = &node.op else {
            return Err(LowerError::new(node.source.node, "not a loop or branch"));
        };
        if let IrOp::Collective(op) = &**op {
            return Ok(self.collective_work(op, &operands, nodes, reads));
        }
        let on_gpu = self.options.machine.gpu().is_some();
        if matches!(&**op, IrOp::Loop(l) if l.conditional && on_gpu) {
            let text = "a GPU needs to know the largest number of steps: give it `max_trips`";
            return Err(LowerError::new(node.source.node, text));
        }
        let keeps = match &**op {
            IrOp::Loop(l) => Keeps::Inputs((1 + l.carried + l.scanned) as u32),
            _ => Keeps::Nothing,
        };
        let lowered = (op.bodies().iter())
            .map(|b| crate::lower_keeping(b, self.options, &Hints::default(), keeps));
        let bodies: Result<Vec<Program>, LowerError> = lowered.collect();
        let bodies = bodies.map_err(|e| LowerError::new(node.source.node, e.to_string()))?;
        let mut bodies = bodies.into_iter();
        let mut next = || Box::new(bodies.next().expect("loops have a body, branches two"));
        let body = match &**op {
            IrOp::Loop(l) => {
                let (first, inputs) = operands.split_at(l.carried);
                let (scanned, alike) = inputs.split_at(l.scanned);
                let (last, stacked) = outputs.split_at(l.carried);
                let op = plan::Loop {
                    trips: l.trips.clone(),
                    reverse: l.reverse,
                    conditional: l.conditional,
                    first: first.to_vec(),
                    scanned: scanned.to_vec(),
                    alike: alike.to_vec(),
                    last: last.to_vec(),
                    stacked: stacked.to_vec(),
                    body: Box::default(),
                };
                Body::Loop(op, next())
            }
            _ => {
                let op = plan::If {
                    condition: operands[0],
                    inputs: operands[1..].to_vec(),
                    outputs,
                    branches: Box::new([Plan::default(), Plan::default()]),
                };
                Body::If(op, Box::new([*next(), *next()]))
            }
        };
        let args = self.args(&nodes, |position| position >= reads);
        let work = self.work(body, args, Vec::new(), &nodes);
        Ok((work, nodes, Vec::new()))
    }

    /// Returns the work of a collective operation, which reads the first `reads` nodes and writes the others.
    fn collective_work(
        &self,
        op: &ops::Collective,
        operands: &[u16],
        nodes: Vec<Nid>,
        reads: usize,
    ) -> WorkParts {
        let array = |arg: u16| {
            let node = &self.flow.nodes[nodes[usize::from(arg)]];
            plan::Array {
                arg,
                dtype: node.dtype,
                shape: node.shape.to_vec(),
            }
        };
        let (source, out) = (self.flow.nodes[nodes[reads]].source, reads as u16);
        let collective = plan::Collective {
            group: op.group.to_string(),
            ranks: op.ranks,
            kind: op.kind,
            x: array(operands[0]),
            token: operands[1],
            out: array(out),
            next: out + 1,
        };
        let site = plan::Site {
            op: op.kind.name().into(),
            kind: plan::SiteKind::Custom,
            node: source.node.0,
        };
        let in_place = collective.is_in_place().then_some(usize::from(operands[0]));
        let body = Body::Library(plan::Kernel::Collective(collective));
        let args = self.args(&nodes, |index| index >= reads);
        let mut work = self.work(body, args, Vec::new(), &nodes);
        work.in_place
            .extend(in_place.map(|operand| (operand, reads)));
        (work, nodes, vec![site])
    }
}
