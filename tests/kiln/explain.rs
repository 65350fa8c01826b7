//! The compiler's report of its work.

use crate::{matrix, vector};
use kiln::nn::{Conv2d, Forward};
use kiln::{
    CompileOptions, Compiled, Conv, DType, Explain, KernelInfo, RunningStats, Spec, Tensor, Var,
    compile, compile_with, memory,
};

/// The text without times, lines of this file, and parts that depend on the processor.
fn shown(text: &str) -> String {
    let lines = text.lines().map(|l| {
        let ends = [" at ", "; CPU level ", " bytes: "];
        let end = ends.into_iter().filter_map(|end| l.find(end)).min();
        &l[..end.unwrap_or(l.len())]
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn passes_kernels_and_memory_are_explained() {
    let weight = Var::new(Tensor::ones([4, 2, 3, 3], DType::F32)).unwrap();
    let mean = Var::new(vector(&[0.0; 4])).unwrap();
    let variance = Var::new(vector(&[1.0; 4])).unwrap();
    let f = compile(Spec::new(DType::F32, [2, 2, 6, 6]), |x| {
        let y = x.conv2d_with(
            weight.get(),
            Conv::new().stride([1, 1]).padding([1, 1]).dilation([1, 1]),
        );
        let y = y.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance),
        );
        y.relu().mean([2, 3]).softmax(1)
    })
    .unwrap();
    insta::assert_snapshot!(shown(&f.explain().to_string()));
}

#[test]
fn exact_leaves_rounding_alone() {
    let weight = Var::new(Tensor::ones([4, 2, 3, 3], DType::F32)).unwrap();
    let mean = Var::new(vector(&[0.0; 4])).unwrap();
    let variance = Var::new(vector(&[1.0; 4])).unwrap();
    let options = CompileOptions {
        exact: true,
        ..CompileOptions::default()
    };
    let f = compile_with(Spec::new(DType::F32, [2, 2, 6, 6]), &options, |x| {
        let y = x.conv2d_with(
            weight.get(),
            Conv::new().stride([1, 1]).padding([1, 1]).dilation([1, 1]),
        );
        y.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance),
        )
    })
    .unwrap();
    assert_eq!(f.explain().folded(), 0);
}

#[test]
fn peak_and_lower_bound_are_known_before_the_run() {
    let f = compile(Spec::new(DType::F32, ("n", 64)), |x| {
        let mut y = x.clone();
        for i in 0..4 {
            y = y.matmul(matrix(64, 64)).relu() * (1.0 + i as f64);
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
    // Other tests of this process allocate too, so only an impossible size is requested.
    let huge = Tensor::zeros([1i64 << 40], DType::F32) + x.sum([0]);
    assert!(huge.realize().is_err());
    assert_eq!(x.sum([0]).item::<f32>().unwrap(), (1 << 22) as f32);
    assert!(memory::stats().peak > 0);
}

/// A network with prepared kernels, a library kernel, a loop and random numbers.
fn network() -> Compiled<Tensor, Tensor> {
    let conv = Conv2d::new(2, 4, [3, 3]).unwrap();
    let mean = Var::new(vector(&[0.0; 4])).unwrap();
    let variance = Var::new(vector(&[1.0; 4])).unwrap();
    compile(Spec::new(DType::F32, [2, 2, 6, 6]), |x| {
        let y = conv.call(&x);
        let y = y.batch_norm_with(
            RunningStats::new()
                .running_mean(&mean)
                .running_var(&variance),
        );
        let y = y.relu().mean([2, 3]);
        let first = y.sum([0]);
        let (_, y) = kiln::scan(first, y, |state: Tensor, x: Tensor| {
            let next = &state * 0.5 + x;
            (next.clone(), next)
        });
        y.dropout(0.5).softmax(1)
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
    let nodes = [&stages.recorded, &stages.optimized].map(|g| nodes_of(g).len());
    assert_eq!(page.matches("<g class=\"n\"").count(), nodes[0] + nodes[1]);
}

/// The nodes of a graph and of the bodies in it.
fn nodes_of(graph: &kiln_ir::Graph) -> Vec<&kiln_ir::Node> {
    let mut nodes = Vec::new();
    for (_, node) in graph.iter() {
        nodes.push(node);
        node.op.inner_nodes(&mut |n| nodes.push(n));
    }
    nodes
}

/// All kernels; those of bodies follow the kernel that runs them.
fn all_kernels(kernels: &[KernelInfo]) -> Vec<&KernelInfo> {
    let mut all = Vec::new();
    for k in kernels {
        all.push(k);
        all.extend(all_kernels(&k.inner));
    }
    all
}

/// The quoted texts after each `before=` of a page.
fn quoted<'p>(page: &'p str, before: &str) -> Vec<&'p str> {
    let start = format!("{before}=\"");
    let behind = page.split(start.as_str()).skip(1);
    behind.map(|t| &t[..t.find('"').unwrap()]).collect()
}

/// The text that a page's escaped text stands for.
fn unescaped(page: &str) -> String {
    let page = page.replace("&lt;", "<").replace("&gt;", ">");
    let page = page.replace("&quot;", "\"").replace("&#39;", "'");
    page.replace("&amp;", "&")
}

/// A network with a branch in a loop's step, and with temporaries.
fn nested_network() -> Compiled<Tensor, Tensor> {
    compile(Spec::new(DType::F32, [5, 64]), |x| {
        let w = Tensor::ones([64, 64], DType::F32);
        let y = x.matmul(&w).relu();
        let (last, _) = kiln::scan(y.sum([0]), y, |state: Tensor, x: Tensor| {
            let large = state.sum([0]).gt(10.0);
            let next = kiln::cond(&large, || &state * 0.5 - &x, || state.sin() + &x);
            (next.clone(), next)
        });
        last.matmul(Tensor::ones([64, 64], DType::F32)).softmax(0)
    })
    .unwrap()
}

/// The cells of each kernel's line: name, when, operations, bytes, operations per byte, ops.
fn lines_of(page: &str) -> Vec<Vec<String>> {
    let lines = page.split("<details class=\"k\"").skip(1);
    let cells = |line: &str| {
        let line = &line[line.find("<summary>").unwrap()..line.find("</summary>").unwrap()];
        let cells = line.split("<span").skip(2);
        let text = |c: &str| {
            let c = &c[c.find('>').unwrap() + 1..];
            unescaped(&c[..c.find("</span>").unwrap()])
        };
        cells.map(text).collect()
    };
    lines.map(cells).collect()
}

#[test]
fn the_page_lists_every_kernel_with_its_cost_and_code() {
    for f in [network(), nested_network(), residual_network()] {
        let (explain, page) = (f.explain(), f.explain().to_html());
        has_everything(&page, explain);
        let kernels = all_kernels(&explain.kernels);
        let lines = lines_of(&page);
        assert_eq!(lines.len(), kernels.len());
        for (kernel, line) in kernels.iter().zip(&lines) {
            let [name, _, flops, bytes, intensity, ops] = &line[..] else {
                panic!("{line:?}");
            };
            assert_eq!((name, ops), (&kernel.name, &kernel.ops.len().to_string()));
            let cost =
                [&kernel.cost.flops, &kernel.cost.bytes].map(|n| n.as_const().unwrap() as f64);
            // At most three digits, rounded, and a unit.
            let number = |cell: &str, base: f64| {
                let digits = cell.trim_end_matches(|c: char| !c.is_ascii_digit());
                let unit = cell[digits.len()..].trim().chars().next().unwrap_or('B');
                let power = " kMGT"
                    .find(unit.to_ascii_lowercase())
                    .or("BKMGT".find(unit));
                digits.parse::<f64>().unwrap() * base.powi(power.unwrap() as i32)
            };
            let near = |a: f64, b: f64| (a - b).abs() <= 0.05 * b.max(1.0);
            assert!(near(number(flops, 1000.0), cost[0]), "{line:?} {cost:?}");
            assert!(near(number(bytes, 1024.0), cost[1]), "{line:?} {cost:?}");
            if cost[1] > 0.0 {
                let shown: f64 = intensity.parse().unwrap();
                assert!(
                    (shown - cost[0] / cost[1]).abs() < 0.006,
                    "{line:?} {cost:?}"
                );
            }
        }
        let text = unescaped(&page);
        for k in &kernels {
            assert!(
                k.kir.as_ref().is_none_or(|kir| text.contains(kir)),
                "{}",
                k.name
            );
            assert!(k.why_not.iter().all(|w| text.contains(w)), "{}", k.name);
        }
        let with_kir = kernels.iter().filter(|k| k.kir.is_some()).count();
        assert_eq!(page.matches(">Kernel IR</summary>").count(), with_kir);
        let tiles = kernels
            .iter()
            .filter(|k| k.kir.is_some() || k.inner.is_empty());
        assert!(page.matches(">tile program</summary>").count() <= tiles.count());
        assert!(page.contains(">tile program</summary>"));
    }
    assert!(
        all_kernels(&residual_network().explain().kernels)
            .iter()
            .any(|k| !k.why_not.is_empty())
    );
}

#[test]
fn every_node_of_the_page_says_what_it_is_and_leads_to_its_kernel() {
    for f in [network(), nested_network(), residual_network()] {
        let (explain, page) = (f.explain(), f.explain().to_html());
        let rows: Vec<&str> = quoted(&page, "<details class=\"k\" id");
        let kernels = all_kernels(&explain.kernels);
        assert_eq!(
            rows.len(),
            kernels.len(),
            "each kernel has a name to jump to"
        );
        let mut named: Vec<&str> = quoted(&page, "data-k");
        named.retain(|k| !k.is_empty());
        for k in named.iter().flat_map(|k| k.split(' ')) {
            assert!(rows.contains(&format!("k{k}").as_str()), "{k} of {rows:?}");
        }
        // Every kernel has a node of its colour, also in loops and branches.
        let shown: Vec<String> = (named.iter())
            .flat_map(|k| k.split(' '))
            .map(|k| format!("k{k}"))
            .collect();
        for row in &rows {
            assert!(shown.iter().any(|k| k == row), "{row} of {shown:?}");
        }
        let titles: Vec<String> = (page.split("<title>").skip(2))
            .map(|t| unescaped(&t[..t.find("</title>").unwrap()]))
            .collect();
        let stages = explain.stages.as_ref().unwrap();
        for node in nodes_of(&stages.optimized) {
            let (name, fact) = (node.op.name(), node.fact().to_string());
            let line = node.loc.to_string();
            let said = |t: &String| {
                t.contains(name) && t.contains(&fact) && (!node.loc.is_known() || t.contains(&line))
            };
            assert!(titles.iter().any(said), "{name} {fact} {line}");
        }
    }
}

#[test]
fn the_page_draws_the_bodies_of_loops_and_branches() {
    let page = nested_network().explain().to_html();
    let titles: Vec<&str> = (page.split("<details class=\"body\"><summary>").skip(1))
        .map(|t| &t[..t.find('<').unwrap()])
        .collect();
    // As lowered and as recorded: the step, and in it both sides of the branch.
    assert_eq!(titles.len(), 6, "{titles:?}");
    for half in titles.chunks(3) {
        assert!(
            half[0].starts_with("loop") && half[0].ends_with(": step"),
            "{half:?}"
        );
        assert!(half[1].ends_with("where the condition holds"), "{half:?}");
        assert!(half[2].ends_with("where it does not"), "{half:?}");
        assert!(
            half.iter().all(|t| t.contains("tests/kiln/explain.rs:")),
            "{half:?}"
        );
    }
    assert_eq!(page.matches("<svg viewBox").count(), 2 + titles.len());
}

#[test]
fn the_page_can_be_moved_and_zoomed_and_fetches_nothing() {
    let f = residual_network();
    let page = f.explain().to_html();
    let script = &page[page.find("<script>").unwrap()..page.find("</script>").unwrap()];
    for event in [
        "wheel",
        "pointerdown",
        "pointermove",
        "pointerup",
        "dblclick",
        "pointerenter",
    ] {
        assert!(
            script.contains(&format!("addEventListener(\"{event}\"")),
            "{event}"
        );
    }
    // Every element that the script looks up exists.
    assert!(script.contains("getElementById(\"info\")") && page.contains("id=\"info\""));
    for tab in quoted(&page, "data-of") {
        assert!(page.contains(&format!("id=\"{tab}\"")), "{tab}");
    }
    let pairs = [('(', ')'), ('[', ']'), ('{', '}')];
    for (open, close) in pairs {
        assert_eq!(script.matches(open).count(), script.matches(close).count());
    }
    for elsewhere in [
        "http", "src=", "url(", "@import", "<link", "import(", "fetch(",
    ] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    // Every temporary is a box over the steps of its live range.
    let memory = &page[page.find("<svg class=\"memory\"").unwrap()..];
    let memory = &memory[..memory.find("</svg>").unwrap()];
    let explain = f.explain();
    assert_eq!(memory.matches("<rect").count(), explain.temporaries.len());
    for b in &explain.temporaries {
        let steps = format!("steps {} to {}, offset {}<", b.first, b.last, b.offset);
        assert!(memory.contains(&steps), "{steps}");
    }
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
    let f = compile(Spec::new(DType::F32, ("a<b", 3)), |x| {
        x.matmul(matrix(3, 3)).exp()
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
    let mut compilations = list(&folder);
    compilations.retain(|name| name != "code");
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
    // A folder that can't be written is an error of the compilation.
    std::fs::write(&folder, "a file").unwrap();
    assert!(!in_a_process(test, &folder));
    std::fs::remove_file(&folder).unwrap();
}

#[test]
#[ignore = "run by the test of dumps, in a process of its own"]
fn runs_a_product() {
    let x = Tensor::ones([40, 40], DType::F32);
    let f = compile(&x, |x| x.matmul(&x).relu()).unwrap();
    assert_eq!(f.run(&x).unwrap().to_vec::<f32>().unwrap(), [40.0; 1600]);
}

#[cfg(all(target_arch = "x86_64", unix))]
#[test]
fn machine_code_is_dumped_where_the_environment_asks_for_it() {
    if kiln_base::Features::current().unwrap() == kiln_base::Features::BASELINE {
        return;
    }
    let folder = std::env::temp_dir().join(format!("kiln-code-{}", std::process::id()));
    assert!(in_a_process("explain::runs_a_product", &folder));
    let files = std::fs::read_dir(folder.join("code")).unwrap();
    let files: Vec<_> = files.map(|e| e.unwrap().path()).collect();
    let of = |part: &str| files.iter().find(|f| f.to_string_lossy().contains(part));
    let code = std::fs::read(of("Vfmadd231ps").expect("register tiles")).unwrap();
    match cfg!(feature = "disassembly") {
        true => assert!(String::from_utf8(code).unwrap().contains("vfmadd231ps")),
        false => assert!(code.len() > 100),
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Convolutions, batch norms and residual sums arranged as in ResNet-50, with few channels.
fn residual_network() -> Compiled<Tensor, Tensor> {
    let conv = |from: usize, to: usize, size: usize| {
        let weight = Tensor::ones([to, from, size, size], DType::F32) * 0.01;
        let vector = |x: f64| Var::new(&(Tensor::ones([to], DType::F32) * x)).unwrap();
        let statistics = [vector(0.0), vector(1.0), vector(1.0), vector(0.0)];
        let (weight, pad) = (Var::new(&weight).unwrap(), size / 2);
        move |x: &Tensor, stride: usize| {
            let y = x.conv2d_with(
                weight.get(),
                Conv::new()
                    .stride([stride; 2])
                    .padding([pad; 2])
                    .dilation([1, 1]),
            );
            let [mean, variance, scale, shift] = &statistics;
            let (scale, shift) = (scale.get(), shift.get());
            let (scale, shift) = (Some(&scale), Some(&shift));
            y.batch_norm_with(
                RunningStats::new()
                    .running_mean(mean)
                    .running_var(variance)
                    .weight(scale)
                    .bias(shift),
            )
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
    compile(Spec::new(DType::F32, [1, 3, 32, 32]), |x| {
        let mut y = stem(&x, 2).relu();
        for ((narrow, middle, wide), beside, stride) in &blocks {
            let z = middle(&narrow(&y, 1).relu(), *stride).relu();
            let beside = beside
                .as_ref()
                .map_or_else(|| y.clone(), |b| b(&y, *stride));
            y = (wide(&z, 1) + beside).relu();
        }
        y.mean([2, 3])
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
        // Wide rows would make the drawing unreadable.
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

#[test]
fn rewrites_of_one_rule_are_summed_up() {
    let f = compile(Spec::new(DType::F32, [7]), |x| {
        // Each of 20 terms is negated twice.
        let term = |i: usize| (&x * (i as f64 + 2.0)).neg().neg().exp();
        (1..20).map(term).fold(x.exp(), |sum, y| sum + y)
    })
    .unwrap();
    let (explain, text) = (f.explain(), f.explain().to_string());
    let (rule, n) = *explain.counts.iter().find(|(_, n)| *n > 8).unwrap();
    let listed = |text: &str| text.matches(&format!("{rule}: ")).count();
    assert!(text.contains(&format!("{rule}: {} more", n - 8)), "{text}");
    assert_eq!(listed(&text), 9, "{text}");
    assert!(explain.to_html().matches(rule).count() >= n, "{rule} {n}");
}

#[test]
fn kernels_say_how_they_are_cut_for_the_processor() {
    let level = kiln_base::Features::current().unwrap();
    let weight = Var::new(Tensor::ones([64, 48], DType::F32)).unwrap();
    let f = compile(Spec::new(DType::F32, [5, 64]), |x| {
        x.exp().matmul(&weight).relu()
    })
    .unwrap();
    let explain = f.explain();
    assert_eq!(explain.level, Some(level));
    let text = explain.to_string();
    assert!(
        text.contains(&format!("CPU level {}", level.name())),
        "{text}"
    );
    let product = explain
        .kernels
        .iter()
        .find(|k| k.algorithm.is_some())
        .unwrap();
    let schedule = product.schedule.as_ref().unwrap();
    match level.width() {
        kiln_base::Features::BASELINE => assert!(schedule.contains("portable"), "{schedule}"),
        _ => assert!(
            schedule.starts_with("packed tile=5x") && schedule.contains("registers"),
            "{schedule}"
        ),
    }
    let at = format!(
        "{} operations, {} bytes: {schedule}",
        product.cost.flops, product.cost.bytes
    );
    assert!(text.contains(&at), "{text}");
    assert!(explain.to_html().contains(schedule));
    // Open sizes get a schedule when they are known.
    let open = compile(Spec::new(DType::F32, ("n", 64)), |x| x.matmul(&weight)).unwrap();
    assert!(open.explain().kernels.iter().all(|k| k.schedule.is_none()));
}
