//! Each rule of the verifier is found broken.

use kiln_ir::Graph;
use kiln_ir::verify::Rule::{self, *};
use kiln_ir::verify::verify;

/// The rules that a text breaks.
fn broken(body: &str) -> Vec<Rule> {
    let graph = Graph::parse(&format!("graph {{ {body} }}")).unwrap();
    let mut rules: Vec<Rule> = match verify(&graph) {
        Ok(()) => vec![],
        Err(found) => found.iter().map(|v| v.rule).collect(),
    };
    rules.dedup();
    rules
}

const X: &str = "%0: f32[2] = input(index: 0, role: Data)\n";

#[test]
fn a_sound_graph_passes() {
    let text = "symbols s0 >= 2 \"batch\"
        %0: f32[s0, 2] = input(index: 0, role: Data)
        %1: f32[s0, 2] = loop(trips: 3) %0 {
            symbols s0 >= 2 \"batch\"
            %0: i64[] = input(index: 0, role: Data)
            %1: f32[s0, 2] = input(index: 1, role: Data)
            return %1
        }
        return %1, assign 0 %1, kept %0";
    assert_eq!(broken(text), []);
}

#[test]
fn operands_come_first() {
    assert_eq!(broken("%0: f32[2] = exp %0 return"), [Operands]);
    assert_eq!(
        broken("%0: f32[2] = exp %1 %1: f32[2] = full(value: Float(1.0)) return"),
        [Operands]
    );
    assert_eq!(
        broken(&format!("{X} %1: f32[2] = exp %0.1 return")),
        [Operands]
    );
}

#[test]
fn facts_are_inferred() {
    assert_eq!(
        broken(&format!("{X} %1: f32[3] = exp %0 return")),
        [Inference]
    );
    assert_eq!(
        broken(&format!("{X} %1: f32[2] = exp %0, %0 return")),
        [Inference]
    );
    assert_eq!(
        broken(&format!("{X} %1: (f32[2], f32[2]) = exp %0 return")),
        [Inference]
    );
}

#[test]
fn nodes_have_outputs() {
    assert_eq!(
        broken(&format!("{X} %1: () = exp %0 return")),
        [NodeOutputs]
    );
}

#[test]
fn sizes_are_not_negative() {
    assert_eq!(
        broken("%0: f32[-1] = input(index: 0, role: Data) return"),
        [Sizes, Inference]
    );
    assert_eq!(broken("%0: i64[-1] = iota return"), [Sizes, Inference]);
}

#[test]
fn symbols_are_declared_and_given() {
    let x = "%0: f32[s0] = input(index: 0, role: Data) return";
    assert_eq!(broken(x), [Symbols]);
    assert_eq!(
        broken(&format!("symbols s0 >= 1 \"n\" {x}")),
        [SmallestValues]
    );
    assert_eq!(
        broken(&format!("symbols s0 >= 2 \"n\", s1 >= 2 \"m\" {x}")),
        [Origins]
    );
    let twice = "symbols s0 >= 2 \"n\" %0: f32[2*s0] = input(index: 0, role: Data) return";
    assert_eq!(broken(twice), [Origins]);
}

#[test]
fn bodies_have_the_programs_symbols() {
    let text = format!(
        "{X} %1: f32[2] = loop(trips: 3) %0 {{
            symbols s0 >= 2 \"n\"
            %0: i64[] = input(index: 0, role: Data)
            %1: f32[2] = input(index: 1, role: Data)
            return %1
        }} return %1"
    );
    assert_eq!(broken(&text), [Symbols]);
}

#[test]
fn bodies_are_verified() {
    let body = |line: &str, output: &str| {
        format!(
            "{X} %1: f32[2] = loop(trips: 3) %0 {{
                %0: i64[] = input(index: 0, role: Data)
                %1: f32[2] = input(index: 1, role: Data)
                {line} return {output}
            }} return %1"
        )
    };
    assert_eq!(broken(&body("%2: f32[9] = exp %1", "%1")), [Inference]);
    assert_eq!(broken(&body("", "%7")), [Results]);
    assert_eq!(broken(&body("", "kept %1")), [BodyOutputs]);
    let graph = Graph::parse(&format!("graph {{{}}}", body("%2: f32[9] = exp %1", "%1")));
    let found = verify(&graph.unwrap()).unwrap_err();
    assert_eq!(
        found[0].to_string(),
        "%1/%2: exp gives f32[2], not f32[9] (rule 2)"
    );
}

#[test]
fn inputs_are_dense() {
    assert_eq!(
        broken("%0: f32[2] = input(index: 1, role: Data) return"),
        [Inputs]
    );
    assert_eq!(
        broken(&format!(
            "{X} %1: f32[2] = input(index: 0, role: Data) return"
        )),
        [Inputs]
    );
}

#[test]
fn keys_are_pairs() {
    assert_eq!(
        broken("%0: i64[3] = input(index: 0, role: RandomKey) return"),
        [Keys]
    );
}

#[test]
fn results_exist() {
    assert_eq!(broken(&format!("{X} return %1")), [Results]);
    assert_eq!(broken(&format!("{X} return %0.3")), [Results]);
}

#[test]
fn assignments_fit_their_cells() {
    assert_eq!(broken(&format!("{X} return assign 1 %0")), [Assignments]);
    assert_eq!(
        broken(&format!("{X} return assign 0 %0, assign 0 %0")),
        [Assignments]
    );
    let cast = "%1: f16[2] = cast %0";
    assert_eq!(
        broken(&format!("{X} {cast} return assign 0 %1")),
        [Assignments]
    );
}

#[test]
fn constants_are_legal() {
    assert_eq!(
        broken("%0: bool[2] = constant(hex: \"0102\") return"),
        [Constants]
    );
    assert_eq!(
        broken("%0: f32[2] = constant(hex: \"0102\") return"),
        [Inference]
    );
}

#[test]
fn numbers_are_of_their_dtype() {
    assert_eq!(
        broken("%0: f16[2] = full(value: Float(0.1)) return"),
        [Numbers]
    );
    assert_eq!(broken("%0: f32[2] = full(value: Int(1)) return"), [Numbers]);
    let norm = "%1: f32[2, 2] = full(value: Float(1.0))
        %2: f32[2, 2] = batch_norm(eps: Int(1), affine: false) %1, %0, %0";
    assert_eq!(broken(&format!("{X} {norm} return")), [Numbers]);
}

#[test]
fn all_violations_are_reported() {
    let text = "%0: f32[-1] = input(index: 4, role: Data) %1: f32[2] = exp %1 return %9";
    let all = [Inputs, Sizes, Inference, Operands, Results];
    assert_eq!(broken(text), all);
}

#[test]
fn bodies_nest_to_a_depth() {
    use kiln_ir::{Builder, Fact, GraphBuilder, Loc, Role, ops::Loop};
    let fact = |dtype| Fact::new(dtype, [0i64; 0]);
    let mut body = Graph::default();
    for depth in 0..=kiln_base::MAX_DEPTH {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        b.input(fact(kiln_ir::DType::I64), Role::Data);
        let x = b.input(fact(kiln_ir::DType::F32), Role::Data);
        let y = match depth {
            0 => Ok(x),
            _ => b.op(Loop::repeat(1.into(), body), &[x]),
        };
        graph.add_output(y.unwrap());
        body = graph;
    }
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(fact(kiln_ir::DType::F32), Role::Data);
    let e = b.op(Loop::repeat(1.into(), body), &[x]).unwrap_err();
    assert!(e.to_string().contains("at most 64 deep"), "{e}");
}
