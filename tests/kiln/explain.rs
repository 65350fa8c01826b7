//! What the compiler says it did.

use crate::{matrix, vector};
use kiln::nn::{Conv2d, Forward};
use kiln::{
    CompileOptions, Compiled, DType, Explain, Spec, Tensor, Var, compile, compile_with, memory,
};

/// Times and lines of this file left out.
fn shown(text: &str) -> String {
    let lines = text.lines().map(|l| match l.find(" at ") {
        Some(at) => &l[..at],
        None => l,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn passes_kernels_and_memory_are_explained() {
    let weight = Var::new(&Tensor::ones([4, 2, 3, 3], DType::F32)).unwrap();
    let mean = Var::new(&vector(&[0.0; 4])).unwrap();
    let variance = Var::new(&vector(&[1.0; 4])).unwrap();
    let f = compile(&[Spec::fixed(DType::F32, [2, 2, 6, 6])], |x| {
        let y = x[0].conv2d(&weight.get(), None, [1, 1], [1, 1], [1, 1], 1);
        let y = y.batch_norm(Some(&mean), Some(&variance), None, None, false, 0.1, 1e-5);
        y.relu().mean([2, 3], false).softmax(1)
    })
    .unwrap();
    insta::assert_snapshot!(shown(&f.explain().to_string()));
}

#[test]
fn exact_leaves_rounding_alone() {
    let weight = Var::new(&Tensor::ones([4, 2, 3, 3], DType::F32)).unwrap();
    let mean = Var::new(&vector(&[0.0; 4])).unwrap();
    let variance = Var::new(&vector(&[1.0; 4])).unwrap();
    let options = CompileOptions {
        exact: true,
        ..CompileOptions::default()
    };
    let f = compile_with(&[Spec::fixed(DType::F32, [2, 2, 6, 6])], &options, |x| {
        let y = x[0].conv2d(&weight.get(), None, [1, 1], [1, 1], [1, 1], 1);
        y.batch_norm(Some(&mean), Some(&variance), None, None, false, 0.1, 1e-5)
    })
    .unwrap();
    assert_eq!(f.explain().folded(), 0);
}

#[test]
fn peak_and_lower_bound_are_known_before_the_run() {
    let f = compile(&[Spec::new(DType::F32, ["n".into(), 64.into()])], |x| {
        let mut y = x[0].clone();
        for i in 0..4 {
            y = y.matmul(&matrix(64, 64)).relu() * (1.0 + i as f64);
        }
        y
    })
    .unwrap();
    let report = f.executable().memory(&[100]).unwrap();
    assert!(report.peak >= report.lower_bound && report.lower_bound > 0);
    assert_eq!(report.outputs, 100 * 64 * 4);
    // A chain needs two intermediates at a time, however long it is.
    assert!(report.peak <= 2 * 100 * 64 * 4 + 128, "{report:?}");
    assert_eq!(f.executable().stats().runs, 0);
}

#[test]
fn a_memory_limit_is_an_error_and_not_the_end() {
    let x = Tensor::zeros([1 << 22], DType::F32) + 1.0;
    // Everything else in this process allocates too, so only an impossible size is asked for.
    let huge = Tensor::zeros([1 << 40], DType::F32) + x.sum([0], false);
    assert!(huge.realize().is_err());
    assert_eq!(x.sum([0], false).item::<f32>().unwrap(), (1 << 22) as f32);
    assert!(memory::stats().peak > 0);
}

/// A network with prepared kernels, a library kernel, a loop and random numbers.
fn network() -> Compiled {
    let conv = Conv2d::new(2, 4, [3, 3]).unwrap();
    let mean = Var::new(&vector(&[0.0; 4])).unwrap();
    let variance = Var::new(&vector(&[1.0; 4])).unwrap();
    compile(&[Spec::fixed(DType::F32, [2, 2, 6, 6])], |x| {
        let y = conv.forward(&x[0]);
        let y = y.batch_norm(Some(&mean), Some(&variance), None, None, false, 0.1, 1e-5);
        let y = y.relu().mean([2, 3], false);
        let first = y.sum([0], false);
        let (_, y) = kiln::scan(first, y, |state: Tensor, x: Tensor| {
            let next = &state * 0.5 + x;
            (next.clone(), next)
        });
        y.dropout(0.5, true).softmax(1)
    })
    .unwrap()
}

/// Every element that a page opens is closed, in order; nothing is fetched from elsewhere.
fn balanced(page: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').ok_or("a tag without end")?;
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        if let Some(name) = name.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes something else"));
            }
        } else if matches!(name, "style" | "script") {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close).ok_or("a script without end")? + close.len()..];
        } else if !tag.ends_with('/') && !matches!(name, "!DOCTYPE" | "meta") {
            open.push(name);
        }
    }
    match open.is_empty() && !page.contains("http") && !page.contains("src=") {
        true => Ok(()),
        false => Err(format!("left open: {open:?}")),
    }
}

fn text(name: &str) -> String {
    name.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn has_everything(page: &str, explain: &Explain) {
    balanced(page).unwrap();
    let mut kernels: Vec<_> = explain.kernels.iter().collect();
    while let Some(k) = kernels.pop() {
        assert!(page.contains(&text(&k.name)), "{}", k.name);
        for op in &k.ops {
            assert!(page.contains(&text(op)), "{op}");
        }
        kernels.extend(&k.inner);
    }
    for fired in &explain.rewrites {
        assert!(page.contains(&text(fired.to_string().trim())), "{fired}");
    }
    let stages = explain.stages.as_ref().unwrap();
    let nodes = stages.recorded.len() + stages.optimized.len();
    assert_eq!(page.matches("<g class=\"n\"").count(), nodes);
}

#[test]
fn the_page_shows_every_node_kernel_and_rewrite() {
    let f = network();
    let explain = f.explain();
    assert!(explain.kernels.iter().any(|k| k.prepared) && !explain.rewrites.is_empty());
    assert!(explain.kernels.iter().any(|k| !k.inner.is_empty()));
    let page = explain.to_html();
    has_everything(&page, explain);
    assert!(page.contains("class=\"alive\""), "memory over the steps");
    assert!(page.contains("tests/kiln/explain.rs:"), "the user's lines");
    assert_eq!(page, explain.to_html());
    // Sizes that are only known in a run.
    let f = compile(&[Spec::new(DType::F32, ["a<b".into(), 3.into()])], |x| {
        x[0].matmul(&matrix(3, 3)).exp()
    })
    .unwrap();
    has_everything(&f.explain().to_html(), f.explain());
    assert!(f.explain().to_html().contains("symbolic"));
}

#[test]
fn graphviz_sees_every_node_and_edge() {
    let f = network();
    let dot = f.explain().to_dot();
    let graph = &f.explain().stages.as_ref().unwrap().optimized;
    assert!(dot.starts_with("digraph kiln {\n") && dot.ends_with("}\n"));
    let edges: usize = graph.iter().map(|(_, n)| n.inputs.len()).sum();
    assert_eq!(dot.matches(" -> ").count(), edges + graph.outputs.len());
    for (id, _) in graph.iter() {
        assert!(dot.contains(&format!("  n{} [label=", id.0)));
    }
    // Quotes in strings are escaped, so their number in a line is even.
    let even = |l: &str| {
        let bare = l.replace("\\\\", "").replace("\\\"", "");
        bare.matches('"').count().is_multiple_of(2)
    };
    assert!(dot.lines().all(even));
}

#[test]
fn explanations_are_saved_by_the_ending_of_the_name() {
    let folder = std::env::temp_dir().join(format!("kiln-explain-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let f = network();
    let explain = f.explain();
    for (name, text) in [
        ("a.html", explain.to_html()),
        ("a.dot", explain.to_dot()),
        ("a.txt", explain.to_string()),
    ] {
        explain.save(folder.join(name)).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap(), text);
    }
    assert!(explain.save(folder.join("none").join("a.html")).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Runs the test of this name in a process of its own, where the environment asks for dumps.
fn in_a_process(test: &str, dump: &std::path::Path) -> bool {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored"])
        .env("KILN_DUMP", dump)
        .output()
        .unwrap();
    output.status.success()
}

#[test]
#[ignore = "run by the test of dumps, in a process of its own"]
fn compiles_on_four_threads() {
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(|| drop(network())))
        .collect();
    assert!(threads.into_iter().all(|t| t.join().is_ok()));
}

#[test]
fn every_stage_is_dumped_where_the_environment_asks_for_it() {
    let folder = std::env::temp_dir().join(format!("kiln-dump-{}", std::process::id()));
    let test = "explain::compiles_on_four_threads";
    assert!(in_a_process(test, &folder));
    let list = |p: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(p)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let compilations = list(&folder);
    assert_eq!(compilations.len(), 4, "{compilations:?}");
    for c in &compilations {
        let files = list(&folder.join(c));
        assert_eq!(files[0], "00-recorded.txt");
        for stage in [
            "folding.txt",
            "groups.txt",
            "kernel-ir.txt",
            "kernels.txt",
            "memory.txt",
            "explain.txt",
            "explain.html",
            "graph.dot",
        ] {
            assert!(
                files.iter().any(|f| f.ends_with(stage)),
                "{stage} in {files:?}"
            );
        }
        let read = |f: &str| std::fs::read_to_string(folder.join(c).join(f)).unwrap();
        assert!(
            files
                .iter()
                .all(|f| !f.starts_with('.') && !read(f).is_empty())
        );
        let recorded = kiln_ir::Graph::parse(&read("00-recorded.txt"));
        assert!(recorded.is_ok(), "{recorded:?}");
        balanced(&read(files.iter().find(|f| f.ends_with(".html")).unwrap())).unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
    // A place that can't be written is an error of the compilation.
    std::fs::write(&folder, "a file").unwrap();
    assert!(!in_a_process(test, &folder));
    std::fs::remove_file(&folder).unwrap();
}

/// Convolutions, batch norms and residual sums of ResNet-50's arrangement, narrow.
fn residual_network() -> Compiled {
    let conv = |from: usize, to: usize, size: usize| {
        let weight = Tensor::ones([to, from, size, size], DType::F32) * 0.01;
        let vector = |x: f64| Var::new(&(Tensor::ones([to], DType::F32) * x)).unwrap();
        let statistics = [vector(0.0), vector(1.0), vector(1.0), vector(0.0)];
        let (weight, pad) = (Var::new(&weight).unwrap(), size / 2);
        move |x: &Tensor, stride: usize| {
            let y = x.conv2d(&weight.get(), None, [stride; 2], [pad; 2], [1, 1], 1);
            let [mean, variance, scale, shift] = &statistics;
            let (scale, shift) = (scale.get(), shift.get());
            let (scale, shift) = (Some(&scale), Some(&shift));
            y.batch_norm(Some(mean), Some(variance), scale, shift, false, 0.1, 1e-5)
        }
    };
    let stem = conv(3, 4, 7);
    let mut blocks = Vec::new();
    let mut channels = 4;
    for (stage, count) in [3, 4, 6, 3].into_iter().enumerate() {
        let (inner, outer) = (2 << stage, 8 << stage);
        for block in 0..count {
            let beside = (block == 0).then(|| conv(channels, outer, 1));
            let parts = (
                conv(channels, inner, 1),
                conv(inner, inner, 3),
                conv(inner, outer, 1),
            );
            blocks.push((parts, beside, if block == 0 && stage > 0 { 2 } else { 1 }));
            channels = outer;
        }
    }
    compile(&[Spec::fixed(DType::F32, [1, 3, 32, 32])], |x| {
        let mut y = stem(&x[0], 2).relu();
        for ((narrow, middle, wide), beside, stride) in &blocks {
            let z = middle(&narrow(&y, 1).relu(), *stride).relu();
            let beside = beside
                .as_ref()
                .map_or_else(|| y.clone(), |b| b(&y, *stride));
            y = (wide(&z, 1) + beside).relu();
        }
        y.mean([2, 3], false)
    })
    .unwrap()
}

/// The boxes of nodes in a drawing: left, top, right, bottom.
fn boxes(drawing: &str) -> Vec<[f64; 4]> {
    let number = |text: &str, name: &str| -> f64 {
        let (_, after) = text.split_once(&format!(" {name}=\"")).expect(name);
        after[..after.find('"').unwrap()].parse().unwrap()
    };
    let rects = drawing.split("<rect").skip(1);
    rects
        .map(|r| {
            let (x, y) = (number(r, "x"), number(r, "y"));
            [x, y, x + number(r, "width"), y + number(r, "height")]
        })
        .collect()
}

#[test]
fn nodes_of_a_deep_network_are_drawn_apart() {
    let f = residual_network();
    assert_eq!(f.explain().folded(), 53);
    let page = f.explain().to_html();
    has_everything(&page, f.explain());
    let drawings = page.split("<svg").skip(1).take(2);
    for drawing in drawings.map(|d| &d[..d.find("</svg>").unwrap()]) {
        let boxes = boxes(drawing);
        assert!(boxes.len() > 250, "{}", boxes.len());
        for (i, a) in boxes.iter().enumerate() {
            let apart = |b: &[f64; 4]| a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
            assert!(boxes[..i].iter().all(apart), "{a:?}");
        }
        // Wide rows would make it unreadable.
        let right = boxes.iter().map(|b| b[2]).fold(0.0, f64::max);
        let left = boxes.iter().map(|b| b[0]).fold(0.0, f64::min);
        assert!(right - left < 6000.0, "{left} to {right}");
    }
    if let Some(folder) = std::env::var_os("KILN_TEST_PAGES") {
        f.explain()
            .save(std::path::Path::new(&folder).join("residual.html"))
            .unwrap();
        network()
            .explain()
            .save(std::path::Path::new(&folder).join("network.html"))
            .unwrap();
    }
}
