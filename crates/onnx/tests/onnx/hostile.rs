//! Models that ask for too much or contradict themselves: each is an error that names the node or the tensor.

use kiln_onnx::{Model, load};
use kiln_tensor::{DType, Tensor};

/// A number of a message of protobuf.
fn int(field: u64, value: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut n in [field << 3, value as u64] {
        while n > 127 {
            bytes.push(n as u8 | 128);
            n >>= 7;
        }
        bytes.push(n as u8);
    }
    bytes
}

/// Text, or a message within a message.
pub fn part(field: u64, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = int(field, body.len() as i64);
    bytes[0] |= 2;
    bytes.extend_from_slice(body);
    bytes
}

/// A node `op name(inputs) -> outputs` with more fields; an operator `f.F` is a function.
fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str], more: &[u8]) -> Vec<u8> {
    let (domain, op) = op.split_once('.').unwrap_or(("", op));
    let inputs = inputs.iter().map(|i| part(1, i));
    let outputs = outputs.iter().map(|o| part(2, o));
    let names = [part(3, name), part(4, op), part(7, domain), more.to_vec()];
    inputs.chain(outputs).chain(names).flatten().collect()
}

fn tensor(name: &str, dtype: i64, dims: &[i64], more: &[u8]) -> Vec<u8> {
    let dims = dims.iter().map(|d| int(1, *d));
    let rest = [int(2, dtype), part(8, name), more.to_vec()];
    dims.chain(rest).flatten().collect()
}

fn integers(name: &str, list: &[i64]) -> Vec<u8> {
    let bytes: Vec<u8> = list.iter().flat_map(|n| n.to_le_bytes()).collect();
    tensor(name, 7, &[list.len() as i64], &part(9, bytes))
}

/// A graph from `x` to `y`.
fn graph(nodes: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let nodes = nodes.iter().map(|n| part(1, n));
    let tensors = tensors.iter().map(|t| part(5, t));
    let ports = [part(11, part(1, "x")), part(12, part(1, "y"))];
    nodes.chain(tensors).chain(ports).flatten().collect()
}

fn function(name: &str, nodes: &[Vec<u8>]) -> Vec<u8> {
    let nodes = nodes.iter().map(|n| part(7, n));
    let about = [part(1, name), part(4, "a"), part(5, "b"), part(10, "f")];
    about.into_iter().chain(nodes).flatten().collect()
}

fn model(graph: &[u8], functions: &[Vec<u8>]) -> Vec<u8> {
    let opset = |domain: &str, version| part(8, [part(1, domain), int(2, version)].concat());
    let functions = functions.iter().map(|f| part(25, f));
    let about = [int(1, 10), part(7, graph), opset("", 21), opset("f", 1)];
    about.into_iter().chain(functions).flatten().collect()
}

/// The error of a model when it is loaded or run.
fn error(model: kiln_tensor::Result<Model>) -> String {
    let x = Tensor::ones([2, 3], DType::F32);
    let run = model.and_then(|m| m.run([("x", x)]));
    run.expect_err("an error").message().to_string()
}

#[test]
fn models_that_contradict_themselves() {
    let relu = || node("Relu", "relu", &["x"], &["y"], &[]);
    let add = || node("Add", "add", &["x", "w"], &["y"], &[]);
    let of = |nodes: &[Vec<u8>], tensors: &[Vec<u8>]| model(&graph(nodes, tensors), &[]);
    let cycle = [
        node("Add", "first", &["x", "b"], &["a"], &[]),
        node("Relu", "second", &["a"], &["b"], &[]),
        node("Relu", "third", &["b"], &["y"], &[]),
    ];
    let conv = node("Conv", "conv", &["w", "w"], &["y"], &[]);
    let floats = |dims: &[i64]| tensor("w", 1, dims, &part(9, [0; 4]));
    for (wanted, bytes) in [
        ("Add \"first\" takes \"b\"", of(&cycle, &[])),
        ("Add \"add\" takes \"w\"", of(&[add()], &[])),
        (
            "Relu \"relu\" gives \"y\", which is given",
            of(&[relu(), relu()], &[]),
        ),
        ("nothing gives the output \"y\"", of(&[], &[])),
        (
            "two initial values are named \"w\"",
            of(&[add()], &[floats(&[1]), floats(&[1])]),
        ),
        (
            "the tensor \"w\"",
            of(&[add()], &[floats(&[1 << 40, 1 << 40])]),
        ),
        ("the tensor \"w\"", of(&[add()], &[floats(&[-1])])),
        ("the tensor \"w\"", of(&[add()], &[floats(&[1000])])),
        (
            "a weight of 1 dims for an input of 1",
            of(&[conv], &[floats(&[1])]),
        ),
    ] {
        let text = error(Model::from_bytes(bytes));
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn models_that_ask_for_too_much() {
    let call = |f: &str, name: &str, a: &str, b: &str| node(f, name, &[a], &[b], &[]);
    let outer = graph(&[call("f.F", "call", "x", "y")], &[]);
    let recursive = model(&outer, &[function("F", &[call("f.F", "inner", "a", "b")])]);
    // 2⁴⁰ calls.
    let twice = |i: usize| {
        let name = format!("f.F{i}");
        [call(&name, "one", "a", "t"), call(&name, "two", "t", "b")]
    };
    let mut functions = vec![function("F0", &[call("Relu", "", "a", "b")])];
    functions.extend((1..40).map(|i| function(&format!("F{i}"), &twice(i - 1))));
    functions.push(function("F", &twice(39)));
    let many = model(&outer, &functions);
    let mut deep = Vec::new();
    for _ in 0..5000 {
        deep = part(1, part(5, part(6, deep)));
    }
    let big = |op: &str, inputs: &[&str], list: &[i64]| {
        let nodes = [node(op, "big", inputs, &["y"], &[])];
        model(&graph(&nodes, &[integers("n", list)]), &[])
    };
    for (wanted, bytes) in [
        ("F \"inner\": functions call each other", recursive),
        ("\"two\": the functions that are called", many),
        ("this is not an ONNX model", model(&deep, &[])),
        (
            "Expand \"big\"",
            big("Expand", &["x", "n"], &[1 << 40, 2, 3]),
        ),
        (
            "Tile \"big\"",
            big("Tile", &["x", "n"], &[1 << 30, 1 << 20]),
        ),
        (
            "ConstantOfShape \"big\"",
            big("ConstantOfShape", &["n"], &[1 << 20, 1 << 30]),
        ),
        (
            "Pad \"big\"",
            big("Pad", &["x", "n"], &[0, 0, 1 << 40, 1 << 40]),
        ),
    ] {
        let text = error(Model::from_bytes(bytes));
        assert!(text.contains(wanted), "{text}");
    }
}

/// External data lies in the folder of the model, within its file.
#[test]
fn external_data_outside_of_the_folder() {
    let root = std::env::temp_dir().join(format!("kiln-onnx-hostile-{}", std::process::id()));
    let folder = root.join("model");
    std::fs::create_dir_all(folder.join("inner")).unwrap();
    std::fs::write(root.join("secret"), [0; 64]).unwrap();
    std::fs::write(folder.join("weights"), [0; 16]).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(root.join("secret"), folder.join("link")).unwrap();
    let absolute = root.join("secret").display().to_string();
    let outside = "is outside of the model's folder";
    let within = [("weights", "0", ""), ("weights", "4", "")];
    let wrong = [
        ("../secret", "0", outside),
        (&absolute, "0", outside),
        ("inner/../../secret", "0", outside),
        #[cfg(unix)]
        ("link", "0", outside),
        ("weights", "8", "are not in"),
        ("weights", "4611686018427387904", "are not in"),
        ("weights", "-4", "is not a number"),
        ("none", "0", "No such file"),
    ];
    for (location, offset, wanted) in within.into_iter().chain(wrong) {
        let entry = |key: &str, value: &str| part(13, [part(1, key), part(2, value)].concat());
        let entries = [
            entry("location", location),
            entry("offset", offset),
            int(14, 1),
        ]
        .concat();
        let nodes = [node("Add", "add", &["x", "w"], &["y"], &[])];
        let bytes = model(&graph(&nodes, &[tensor("w", 1, &[3], &entries)]), &[]);
        let path = folder.join("model.onnx");
        std::fs::write(&path, bytes).unwrap();
        match wanted {
            "" => drop(load(&path).unwrap()),
            wanted => {
                let text = error(load(&path));
                assert!(
                    text.contains("the tensor \"w\"") && text.contains(wanted),
                    "{text}"
                );
            }
        }
    }
    std::fs::remove_dir_all(root).unwrap();
}
