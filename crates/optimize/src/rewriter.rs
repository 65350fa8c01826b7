//! The application of patches: checks, the report, and the queue of nodes that rules have yet to look at.

use crate::arena::Arena;
use crate::{Fired, OptimizeError, Options, Patch, Report, Rule, View};
use kiln_ir::verify::{Rule as VerifierRule, verify};
use kiln_ir::{Graph, Loc, NodeId, Value};
use std::collections::VecDeque;

/// Above this many nodes the graph is verified once a pass instead of around every patch, which would
/// take time quadratic in the size.
const VERIFY_EACH_PATCH_BELOW: usize = 1000;

/// Operands of a node that the report names.
const MAX_NAMED: usize = 16;

/// Applies the patches of one pass.
pub struct Rewriter<'a> {
    arena: Arena,
    report: &'a mut Report,
    options: &'a Options,
    pass: &'static str,
    depth: usize,
    /// Nodes that rules have yet to look at.
    queue: VecDeque<NodeId>,
    queued: Vec<bool>,
    last_rule: &'static str,
}

impl<'a> Rewriter<'a> {
    pub(crate) fn new(
        arena: Arena,
        pass: &'static str,
        depth: usize,
        options: &'a Options,
        report: &'a mut Report,
    ) -> Rewriter<'a> {
        Rewriter {
            arena,
            report,
            options,
            pass,
            depth,
            queue: VecDeque::new(),
            queued: Vec::new(),
            last_rule: "",
        }
    }

    /// The graph as rules see it.
    pub fn view(&self) -> View<'_> {
        View {
            arena: &self.arena,
            machine: &self.options.machine,
        }
    }

    /// The nodes that are not removed, operands before users.
    pub fn ids(&self) -> Vec<NodeId> {
        self.arena.linear_order().unwrap_or_default()
    }

    /// True if a node has not been removed.
    pub fn is_live(&self, id: NodeId) -> bool {
        self.arena.is_there(id)
    }

    /// True if `max_patches` is reached.
    pub fn is_stopped(&self) -> bool {
        self.report.stopped
    }

    /// Applies a patch that a rule gave for a node. Returns `false` if `max_patches` is reached.
    ///
    /// # Errors
    /// If the patch changes a fact, is inconsistent, or makes the graph invalid.
    pub fn apply(
        &mut self,
        rule: &'static str,
        node: NodeId,
        patch: Patch,
    ) -> Result<bool, OptimizeError> {
        self.check(rule, node, &patch)?;
        if !self.record(rule, node) {
            return Ok(false);
        }
        let mut readers: Vec<NodeId> = (patch.replacements.iter())
            .flat_map(|(old, _)| self.arena.users[old.node.index()].iter().copied())
            .collect();
        readers.sort();
        readers.dedup();
        let position = self.arena.position(node);
        let mut new = Vec::with_capacity(patch.nodes.len());
        for n in patch.nodes {
            new.push(self.arena.append(n, position));
        }
        let touched = self.arena.redirect(&readers, &patch.replacements);
        let replaced = patch.replacements.iter().map(|(old, _)| old.node);
        let mut neighbours: Vec<NodeId> = Vec::new();
        for id in replaced.chain(new.iter().rev().copied()) {
            neighbours.extend(self.arena.drop_unused(id));
        }
        for id in new.into_iter().chain(touched).chain(neighbours) {
            self.enqueue(id);
        }
        self.verify_patch(rule, node)?;
        Ok(true)
    }

    /// Removes a node without readers. Returns `false` if `max_patches` is reached.
    ///
    /// # Errors
    /// If a node or an output of the graph reads it, or it is an input.
    pub fn remove(&mut self, rule: &'static str, node: NodeId) -> Result<bool, OptimizeError> {
        if !self.arena.unused(node) {
            let problem = "it removes a node that is an input or still read".into();
            return Err(self.bad_patch(rule, node, problem));
        }
        if !self.record(rule, node) {
            return Ok(false);
        }
        for id in self.arena.drop_unused(node) {
            self.enqueue(id);
        }
        self.verify_patch(rule, node)?;
        Ok(true)
    }

    /// Runs rules on every node until none applies. Each node is looked at again only when its
    /// operands or the number of its readers change, so this takes time linear in nodes and patches.
    pub(crate) fn run_rules(&mut self, rules: &[Rule]) -> Result<(), OptimizeError> {
        for id in self.ids() {
            self.enqueue(id);
        }
        // A rule that fires more often than this never reaches a fixed point.
        let mut fuel = 100 + 30 * self.arena.graph.len();
        while let Some(id) = self.queue.pop_front() {
            self.queued[id.index()] = false;
            for rule in rules {
                if !self.is_live(id) || self.is_stopped() {
                    break;
                }
                if let Some(patch) = (rule.apply)(&self.view(), id) {
                    self.apply(rule.name, id, patch)?;
                    fuel -= 1;
                    if fuel == 0 {
                        return Err(OptimizeError::NoFixedPoint {
                            pass: self.pass,
                            rule: rule.name,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the pass: the nodes in topological order.
    pub(crate) fn finish(self) -> Result<Arena, OptimizeError> {
        let (rule, pass) = (self.last_rule, self.pass);
        let invalid = |violations: String| OptimizeError::Invalid {
            rule,
            node: format!("some node of pass {pass}"),
            loc: Loc::UNKNOWN,
            violations,
        };
        let arena = (self.arena.tidied()).ok_or_else(|| invalid("a cycle".into()))?;
        if self.options.verify {
            violations(&arena.graph, self.depth > 0).map_err(invalid)?;
        }
        Ok(arena)
    }

    fn enqueue(&mut self, id: NodeId) {
        self.queued.resize(self.arena.graph.len(), false);
        if self.is_live(id) && !std::mem::replace(&mut self.queued[id.index()], true) {
            self.queue.push_back(id);
        }
    }

    /// Records a patch in the report; `false` if `max_patches` is reached.
    fn record(&mut self, rule: &'static str, node: NodeId) -> bool {
        if Some(self.report.fired.len()) == self.options.max_patches {
            self.report.stopped = true;
            return false;
        }
        self.last_rule = rule;
        self.report.fired.push(Fired {
            pass: self.pass,
            rule,
            node: self.describe(node),
            loc: self.loc(node),
            depth: self.depth,
        });
        true
    }

    fn check(&self, rule: &'static str, node: NodeId, patch: &Patch) -> Result<(), OptimizeError> {
        let reject = |problem: String| Err(self.bad_patch(rule, node, problem));
        if patch.first_new != self.arena.graph.len() {
            return reject("it was made for another state of the graph".into());
        }
        if patch.replacements.is_empty() {
            return reject("it replaces nothing".into());
        }
        let fact = |v: Value| match v.node.index().checked_sub(patch.first_new) {
            Some(i) => patch.nodes.get(i)?.facts.get(v.output as usize),
            None => self.arena.is_live(v).then(|| self.arena.graph.fact(v)),
        };
        for (i, n) in patch.nodes.iter().enumerate() {
            let exists = |v: &Value| v.node.index() < patch.first_new + i && fact(*v).is_some();
            if let Some(v) = n.inputs.iter().find(|v| !exists(v)) {
                return reject(format!("its {} reads {v}, which isn't there", n.op.name()));
            }
        }
        for (old, new) in &patch.replacements {
            if old == new {
                return reject(format!("it replaces {old} by itself"));
            }
            if !self.arena.is_live(*old) {
                return reject(format!("it replaces {old}, which isn't there"));
            }
            let Some(after) = fact(*new) else {
                return reject(format!("it replaces {old} by {new}, which isn't there"));
            };
            let before = self.arena.graph.fact(*old);
            if before != after {
                return Err(OptimizeError::FactChanged {
                    rule,
                    node: self.describe(node),
                    loc: self.loc(node),
                    before: before.to_string(),
                    after: after.to_string(),
                });
            }
        }
        Ok(())
    }

    fn verify_patch(&self, rule: &'static str, node: NodeId) -> Result<(), OptimizeError> {
        if !self.options.verify || self.arena.graph.len() > VERIFY_EACH_PATCH_BELOW {
            return Ok(());
        }
        let graph = self.arena.clone().into_graph();
        graph
            .ok_or_else(|| "a cycle".to_string())
            .and_then(|g| violations(&g, self.depth > 0))
            .map_err(|violations| OptimizeError::Invalid {
                rule,
                node: self.describe(node),
                loc: self.loc(node),
                violations,
            })
    }

    fn bad_patch(&self, rule: &'static str, node: NodeId, problem: String) -> OptimizeError {
        OptimizeError::BadPatch {
            rule,
            node: self.describe(node),
            loc: self.loc(node),
            problem,
        }
    }

    fn loc(&self, id: NodeId) -> Loc {
        self.arena.graph.node(id).loc.clone()
    }

    fn describe(&self, id: NodeId) -> String {
        let node = self.arena.graph.node(id);
        let list = |facts: Vec<String>| facts.join(", ");
        let operands = node.inputs.iter().take(MAX_NAMED);
        let operands = operands.map(|v| self.arena.graph.fact(*v).to_string());
        let more = (node.inputs.len() > MAX_NAMED).then(|| "..".to_string());
        let operands = operands.chain(more);
        let results = node.facts.iter().map(|f| f.to_string());
        format!(
            "{}({}) -> {}",
            node.op.name(),
            list(operands.collect()),
            list(results.collect())
        )
    }
}

/// Returns the verifier's report on a graph as an error, if there are violations. For a body, rules about symbols are
/// left out: the program declares them, and is verified as a whole.
pub(crate) fn violations(graph: &Graph, is_body: bool) -> Result<(), String> {
    let Err(mut violations) = verify(graph) else {
        return Ok(());
    };
    violations
        .retain(|v| !is_body || !matches!(v.rule, VerifierRule::Symbols | VerifierRule::Origins));
    if violations.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = violations.iter().map(|v| v.to_string()).collect();
    Err(lines.join("\n"))
}
