//! Ensembles of decision trees. All rows go down all trees at once, a level at a time.

use super::classify::{First, classifier_results, listed_classes, two_class_results};
use super::scores::post_transform;
use crate::call::{Call, Results, single};
use crate::fault::{invalid, unsupported};
use crate::tensor;
use kiln_base::Dim;
use kiln_tensor::{DType, Error, Result, Tensor};
use std::collections::HashMap;

/// The deepest tree.
const MAX_DEPTH: usize = 4096;

type Comparison = fn(&Tensor, &Tensor) -> Tensor;

/// The comparisons of a node in the order of the standard, with their names.
const MODES: [(&str, Comparison); 6] = [
    ("BRANCH_LEQ", |x, split| x.le(split)),
    ("BRANCH_LT", |x, split| x.lt(split)),
    ("BRANCH_GTE", |x, split| x.ge(split)),
    ("BRANCH_GT", |x, split| x.gt(split)),
    ("BRANCH_EQ", |x, split| x.eq(split)),
    ("BRANCH_NEQ", |x, split| x.ne(split)),
];
/// The index of equality in [`MODES`].
const EQUAL: usize = 4;
/// The number of the comparison with a set, which becomes one with each element.
const MEMBER: i64 = 6;

/// A comparison of a feature, behind which stand two other nodes; or a leaf, behind which it stands itself.
#[derive(Clone)]
struct Node {
    /// The index of the comparison in [`MODES`].
    mode: usize,
    feature: i64,
    split: f64,
    missing_is_true: bool,
    otherwise: usize,
    then: usize,
    leaf: usize,
}

impl Node {
    fn leaf(index: usize, leaf: usize) -> Node {
        Node {
            mode: 0,
            feature: 0,
            split: 0.0,
            missing_is_true: false,
            otherwise: index,
            then: index,
            leaf,
        }
    }
}

struct Forest {
    nodes: Vec<Node>,
    roots: Vec<usize>,
    /// The weights that each leaf adds, with their targets.
    leaves: Vec<Vec<(usize, f64)>>,
    targets: usize,
}

fn not_a_comparison() -> Error {
    invalid("an element of nodes_modes is not a comparison")
}

fn index(n: i64) -> Result<usize> {
    usize::try_from(n).map_err(|_| invalid(format!("{n} is not a node, leaf or target")))
}

fn attribute(c: &Call, name: &str) -> Result<Vec<i64>> {
    Ok(c.ints(name)?.unwrap_or_default())
}

/// Returns the numbers of an attribute that holds a tensor.
fn numbers(c: &Call, name: &str) -> Result<Vec<f64>> {
    match c.tensor_attribute(name)? {
        Some(t) => tensor::read(t, None)?.to_dtype(DType::F64).to_vec(),
        None => Ok(Vec::new()),
    }
}

/// Returns the floats of an attribute, or of its form that is a tensor.
fn floats(c: &Call, name: &str) -> Result<Vec<f64>> {
    match c.floats(name)? {
        Some(list) if !list.is_empty() => Ok(list),
        _ => numbers(c, &format!("{name}_as_tensor")),
    }
}

/// Entry `i` of a list of the node's attributes.
fn entry<T: Copy>(list: &[T], i: usize, name: &str) -> Result<T> {
    let entry = list.get(i).copied();
    entry.ok_or_else(|| invalid(format!("{name} has only {} entries", list.len())))
}

pub(super) fn ensemble(c: &Call) -> Results {
    let modes = numbers(c, "nodes_modes")?;
    let splits = numbers(c, "nodes_splits")?;
    let features = attribute(c, "nodes_featureids")?;
    let missing = attribute(c, "nodes_missing_value_tracks_true")?;
    let children = [
        ("nodes_falsenodeids", "nodes_falseleafs"),
        ("nodes_truenodeids", "nodes_trueleafs"),
    ];
    let mut next = Vec::new();
    for (ids, leaves) in children {
        let (list, leaves_of) = (attribute(c, ids)?, attribute(c, leaves)?);
        let child = |i: usize| {
            let id = index(entry(&list, i, ids)?)?;
            let left = if entry(&leaves_of, i, leaves)? != 0 {
                modes.len()
            } else {
                0
            };
            Ok(left + id)
        };
        next.push(
            (0..modes.len())
                .map(child)
                .collect::<Result<Vec<usize>>>()?,
        );
    }
    let targets = attribute(c, "leaf_targetids")?;
    let weights = numbers(c, "leaf_weights")?;
    let leaf =
        |(i, w): (usize, &f64)| Ok(vec![(index(entry(&targets, i, "leaf_targetids")?)?, *w)]);
    let leaves: Vec<_> = weights
        .iter()
        .enumerate()
        .map(leaf)
        .collect::<Result<_>>()?;
    let mut nodes: Vec<Node> = Vec::new();
    let mut extra: Vec<Node> = Vec::new();
    let members = numbers(c, "membership_values")?;
    let mut sets = members.split(|m| m.is_nan());
    for (i, mode) in modes.iter().enumerate() {
        let node = Node {
            mode: EQUAL,
            feature: entry(&features, i, "nodes_featureids")?,
            split: entry(&splits, i, "nodes_splits")?,
            missing_is_true: missing.get(i).is_some_and(|m| *m != 0),
            otherwise: next[0][i],
            then: next[1][i],
            leaf: 0,
        };
        if *mode as i64 == MEMBER {
            // One comparison with each element, behind those of the leaves.
            let set = sets.next().unwrap_or_default();
            let mut otherwise = node.otherwise;
            for split in set.iter().skip(1) {
                extra.push(Node {
                    split: *split,
                    otherwise,
                    ..node.clone()
                });
                otherwise = modes.len() + weights.len() + extra.len() - 1;
            }
            let split = set.first().copied().unwrap_or(f64::NAN);
            nodes.push(Node {
                split,
                otherwise,
                ..node
            });
            continue;
        }
        if !(0.0..MODES.len() as f64).contains(mode) {
            return Err(not_a_comparison());
        }
        let mode = *mode as usize;
        nodes.push(Node { mode, ..node });
    }
    nodes.extend((0..weights.len()).map(|i| Node::leaf(modes.len() + i, i)));
    nodes.extend(extra);
    let forest = Forest {
        nodes,
        roots: attribute(c, "tree_roots")?
            .into_iter()
            .map(index)
            .collect::<Result<_>>()?,
        leaves,
        targets: index(c.int("n_targets", 1)?)?,
    };
    let named = |names: &[&'static str], attribute: &str, default: i64| {
        let n = index(c.int(attribute, default)?)?;
        let name = names.get(n).copied();
        name.ok_or_else(|| invalid(format!("{attribute} {n} is unknown")))
    };
    let aggregates = ["AVERAGE", "SUM", "MIN", "MAX"];
    let aggregate = named(&aggregates, "aggregate_function", 1)?;
    let transforms = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"];
    let transform = named(&transforms, "post_transform", 0)?;
    let scores = forest.scores(&c.tensor(0)?, aggregate)?;
    single(post_transform(transform, scores)?)
}

/// The trees of an operator whose leaves have weights in the attributes that begin with `prefix`, for targets or classes.
fn forest(c: &Call, prefix: &str, targets: usize) -> Result<Forest> {
    let list = |name: &str| Ok::<_, Error>((attribute(c, name)?, name.to_string()));
    let (trees, ids) = (list("nodes_treeids")?, list("nodes_nodeids")?);
    let (thens, otherwises) = (list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
    let features = list("nodes_featureids")?;
    let modes = c.texts("nodes_modes")?.unwrap_or_default();
    let splits = floats(c, "nodes_values")?;
    let missing = attribute(c, "nodes_missing_value_tracks_true")?;
    let value_at = |(list, name): &(Vec<i64>, String), i: usize| entry(list, i, name);
    let mut node_indices = HashMap::new();
    for i in 0..modes.len() {
        node_indices.insert((value_at(&trees, i)?, value_at(&ids, i)?), i);
    }
    let node_index = |tree: i64, id: i64| {
        let index = node_indices.get(&(tree, id)).copied();
        index.ok_or_else(|| invalid(format!("tree {tree} has no node {id}")))
    };
    let (mut nodes, mut leaves, mut roots) = (Vec::new(), Vec::new(), Vec::new());
    for (i, mode) in modes.iter().enumerate() {
        let tree = value_at(&trees, i)?;
        if i == 0 || tree != value_at(&trees, i - 1)? {
            roots.push(i);
        }
        if mode == "LEAF" {
            nodes.push(Node::leaf(i, leaves.len()));
            leaves.push(Vec::new());
            continue;
        }
        let mode = MODES.iter().position(|(name, _)| name == mode);
        nodes.push(Node {
            mode: mode.ok_or_else(not_a_comparison)?,
            feature: value_at(&features, i)?,
            split: entry(&splits, i, "nodes_values")?,
            missing_is_true: missing.get(i).is_some_and(|m| *m != 0),
            otherwise: node_index(tree, value_at(&otherwises, i)?)?,
            then: node_index(tree, value_at(&thens, i)?)?,
            leaf: 0,
        });
    }
    let [of_trees, of_nodes, targets_of] =
        ["treeids", "nodeids", "ids"].map(|n| list(&format!("{prefix}_{n}")));
    let (of_trees, of_nodes, targets_of) = (of_trees?, of_nodes?, targets_of?);
    let weights = floats(c, &format!("{prefix}_weights"))?;
    for (i, weight) in weights.iter().enumerate() {
        let node = node_index(value_at(&of_trees, i)?, value_at(&of_nodes, i)?)?;
        let leaf = nodes[node].leaf;
        match modes[node] == "LEAF" {
            true => leaves[leaf].push((index(value_at(&targets_of, i)?)?, *weight)),
            false => return Err(invalid("a weight is not that of a leaf")),
        }
    }
    Ok(Forest {
        nodes,
        roots,
        leaves,
        targets,
    })
}

/// Rows in the dtype that trees compare in.
fn rows(c: &Call) -> Result<Tensor> {
    let x = c.tensor(0)?;
    Ok(match x.dtype() {
        DType::F64 => x,
        _ => x.to_dtype(DType::F32),
    })
}

/// The scores of the input's rows, with `base` added, in f32.
fn scores(c: &Call, forest: &Forest, base: Vec<f64>, aggregate: &str) -> Result<Tensor> {
    let mut scores = forest.scores(&rows(c)?, aggregate)?;
    if !base.is_empty() {
        scores = &scores + Tensor::from(base).to_dtype(scores.dtype());
    }
    Ok(scores.to_dtype(DType::F32))
}

pub(super) fn regressor(c: &Call) -> Results {
    let forest = forest(c, "target", index(c.int("n_targets", 1)?)?)?;
    let aggregate = c.text("aggregate_function", "SUM")?;
    let scores = scores(c, &forest, floats(c, "base_values")?, aggregate)?;
    single(post_transform(c.text("post_transform", "NONE")?, scores)?)
}

/// Where there are two classes and weights of one alone, its score decides.
pub(super) fn classifier(c: &Call) -> Results {
    let classes = listed_classes(c, "classlabels_int64s")?;
    let mut forest = forest(c, "class", classes.len())?;
    let ids = attribute(c, "class_ids")?;
    let is_binary = classes.len() == 2 && ids.iter().all(|id| *id == ids[0]);
    let mut base = floats(c, "base_values")?;
    let weights = forest.leaves.iter_mut().flatten();
    let mut is_positive = true;
    for (target, weight) in weights {
        is_positive &= *weight >= 0.0;
        if is_binary {
            *target = 0;
        }
    }
    if is_binary {
        forest.targets = 1;
        base = base.split_off(base.len().saturating_sub(1));
    }
    let scores = scores(c, &forest, base, "SUM")?;
    let transform = c.text("post_transform", "NONE")?;
    match is_binary {
        true => {
            let (limit, first) = match is_positive {
                true => (0.5, First::Complement),
                false => (0.0, First::Opposite),
            };
            two_class_results(&classes, scores, limit, transform, first)
        }
        false => classifier_results(&classes, scores, transform),
    }
}

impl Forest {
    /// Returns the number of comparisons on the longest path to a leaf.
    fn depth(&self) -> Result<usize> {
        let mut level = self.roots.clone();
        for depth in 0..=self.nodes.len().min(MAX_DEPTH) {
            level.sort_unstable();
            level.dedup();
            let mut next = Vec::new();
            for index in level {
                let node = self.nodes.get(index);
                let node = node.ok_or_else(|| invalid(format!("there is no node {index}")))?;
                if node.then != index {
                    next.extend([node.then, node.otherwise]);
                }
            }
            if next.is_empty() {
                return Ok(depth);
            }
            level = next;
        }
        Err(unsupported("trees with cycles, or deeper than 4096"))
    }

    /// Returns the scores `[n, targets]` of rows `[n, features]`, which `aggregate` joins over the trees.
    fn scores(&self, x: &Tensor, aggregate: &str) -> Result<Tensor> {
        let [rows, _] = x.dims() else {
            return Err(invalid(format!(
                "takes [n, features], not {} dims",
                x.ndim()
            )));
        };
        let depth = self.depth()?;
        let (trees, targets) = (self.roots.len() as i64, self.targets as i64);
        if trees == 0 {
            return Err(invalid("there are no trees"));
        }
        let table =
            |f: fn(&Node) -> i64| Tensor::from(self.nodes.iter().map(f).collect::<Vec<i64>>());
        let (features, thens) = (table(|n| n.feature), table(|n| n.then as i64));
        let (otherwises, missing) = (
            table(|n| n.otherwise as i64),
            table(|n| n.missing_is_true.into()),
        );
        let splits: Vec<f64> = self.nodes.iter().map(|n| n.split).collect();
        let splits = Tensor::from(splits).to_dtype(x.dtype());
        let roots: Vec<i64> = self.roots.iter().map(|r| *r as i64).collect();
        let mut node = Tensor::from(roots).expand(vec![rows.clone(), Dim::Const(trees)]);
        for _ in 0..depth {
            let value = x.gather(1, features.take(&node));
            let mut truth = self.truth(&value, &splits.take(&node), &node);
            if self.nodes.iter().any(|n| n.missing_is_true) {
                let counts = missing.take(&node).ne(0).logical_and(value.isnan());
                truth = truth.logical_or(counts);
            }
            node = thens.take(&node).where_cond(truth, otherwises.take(&node));
        }
        let (neutral, joined): (f64, fn(&Tensor) -> Tensor) = match aggregate {
            "AVERAGE" | "SUM" => (0.0, |scores| scores.sum(1)),
            "MIN" => (f64::from(f32::MAX), |scores| scores.amin(1)),
            "MAX" => (f64::from(f32::MIN), |scores| scores.amax(1)),
            other => return Err(invalid(format!("there is no function {other:?}"))),
        };
        let count = self
            .leaves
            .len()
            .checked_mul(self.targets)
            .filter(|n| *n <= 1 << 28);
        let count = count.ok_or_else(|| unsupported("so many leaves and targets"))?;
        let mut weights = vec![neutral; count];
        for (leaf, list) in self.leaves.iter().enumerate() {
            for (target, weight) in list {
                if *target >= self.targets {
                    return Err(invalid(format!("there is no target {target}")));
                }
                weights[leaf * self.targets + target] = *weight;
            }
        }
        let weights = Tensor::from(weights)
            .reshape([-1, targets])
            .to_dtype(x.dtype());
        let leaf = table(|n| n.leaf as i64).take(&node).reshape([-1]);
        let shape = vec![rows.clone(), Dim::Const(trees), Dim::Const(targets)];
        let scores = joined(&weights.index_select(0, leaf).reshape(shape));
        Ok(match aggregate {
            "AVERAGE" => scores / trees as f64,
            _ => scores,
        })
    }

    /// The truth of the comparisons of nodes.
    fn truth(&self, value: &Tensor, split: &Tensor, node: &Tensor) -> Tensor {
        let compared = |mode: usize| MODES[mode].1(value, split);
        let inner = || self.nodes.iter().enumerate().filter(|(i, n)| n.then != *i);
        let mut used = (0..MODES.len()).filter(|mode| inner().any(|(_, n)| n.mode == *mode));
        let first_mode = used.next().unwrap_or_default();
        used.fold(compared(first_mode), |truth, mode| {
            let is_it: Vec<bool> = self.nodes.iter().map(|n| n.mode == mode).collect();
            compared(mode).where_cond(Tensor::from(is_it).take(node), truth)
        })
    }
}
