//! The profiler: the kernels that ran, their numbers of runs, and their costs.

use crate::matrix;
use kiln::data::{DataLoader, Dataset, TensorDataset};
use kiln::profiler::{Profile, profile};
use kiln::{DType, Spec, Tensor, compile};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Enough JSON to see that a trace is well formed: strings, numbers, lists and objects.
fn well_formed(text: &str) -> Result<(), String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let events = value["traceEvents"].as_array().ok_or("no events")?;
    for e in events {
        let kind = e["ph"].as_str().ok_or("no kind")?;
        let spans = e["ts"].is_f64() && e["dur"].is_f64();
        if !(kind == "M" || kind == "X" && spans) || !e["name"].is_string() {
            return Err(format!("{e}"));
        }
    }
    Ok(())
}

fn named<'p>(found: &'p Profile, op: &str) -> Vec<&'p kiln::profiler::KernelEvent> {
    let does = |ops: &[String]| ops.iter().any(|o| o.starts_with(op));
    found.events().iter().filter(|e| does(&e.ops)).collect()
}

#[test]
fn kernels_of_reads_and_of_compiled_functions_are_counted() {
    let (a, b) = (matrix(48, 32), matrix(32, 40));
    a.realize().unwrap();
    b.realize().unwrap();
    let spec = Spec::new(DType::F32, ("n", 32));
    let f = compile(spec, |x| x.matmul(&b).relu().sum([1])).unwrap();
    let (out, found) = profile(|| {
        for _ in 0..3 {
            f.run(&a).unwrap();
        }
        (a.exp() + 1.0).to_vec::<f32>().unwrap().len()
    });
    assert_eq!(out, 48 * 32);
    let products = named(&found, "matmul");
    assert_eq!(products.len(), 3);
    for p in &products {
        // At least two operations for each multiplication, and both operands are read.
        assert!(p.flops >= 2.0 * 48.0 * 32.0 * 40.0, "{p:?}");
        assert!(p.bytes >= 4.0 * (48.0 * 32.0 + 32.0 * 40.0), "{p:?}");
        assert!(
            p.ops.iter().any(|o| o.contains("tests/kiln/profile.rs:")),
            "{p:?}"
        );
    }
    assert_eq!(named(&found, "exp").len(), 1);
    assert_eq!(found.runs().len(), 4);
    assert!(found.total_time() <= found.wall_time());
    assert!(found.events().is_sorted_by_key(|e| e.start));
    let rows = found.key_averages().rows;
    let product = rows
        .iter()
        .find(|r| r.ops.iter().any(|o| o.starts_with("matmul")));
    let product = product.expect("a row of the product");
    assert_eq!(product.count, 3);
    assert_eq!(product.flops, 3.0 * products[0].flops);
    assert!(rows.is_sorted_by_key(|r| std::cmp::Reverse(r.total)));
}

#[test]
fn nothing_is_collected_outside_of_a_profile() {
    let ((), outer) = profile(|| {
        matrix(3, 3).exp().to_vec::<f32>().unwrap();
        let ((), inner) = profile(|| drop(matrix(3, 3).sin().to_vec::<f32>().unwrap()));
        assert_eq!(
            (named(&inner, "sin").len(), named(&inner, "exp").len()),
            (1, 0)
        );
    });
    matrix(3, 3).cos().to_vec::<f32>().unwrap();
    let counts = ["exp", "sin", "cos"].map(|op| named(&outer, op).len());
    assert_eq!(counts, [1, 1, 0]);
    // Errors and panics leave no collection behind.
    let panicked = std::panic::catch_unwind(|| profile(|| panic!("on purpose")).1);
    assert!(panicked.is_err());
    let ((), after) = profile(|| ());
    assert!(after.events().is_empty());
    assert_eq!(after.key_averages().table(10).lines().count(), 1);
}

#[test]
fn tables_and_traces_can_be_read() {
    let ((), found) = profile(|| {
        let x = matrix(33, 7);
        drop(x.exp().softmax(1).to_vec::<f32>().unwrap());
        drop(x.tril().cumsum(0).to_vec::<f32>().unwrap());
    });
    let all = found.key_averages();
    let table = all.table(1);
    assert!(table.starts_with(" share"), "{table}");
    assert_eq!(
        table.lines().count(),
        2 + (all.rows.len() > 1) as usize + found.compilations().len(),
        "{table}"
    );
    assert!(
        all.to_string().contains("softmax") || all.to_string().contains("exp"),
        "{all}"
    );
    well_formed(&found.to_chrome_trace()).unwrap();

    let folder = std::env::temp_dir().join(format!("kiln-profile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("trace.json");
    found.export_chrome_trace(&path).unwrap();
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        found.to_chrome_trace()
    );
    std::fs::remove_dir_all(&folder).unwrap();
    let e = found.export_chrome_trace(&path).unwrap_err();
    assert_eq!(e.kind(), kiln::ErrorKind::Io);
    assert!(e.to_string().contains("trace.json"), "{e}");
}

#[test]
fn what_kernels_reach_of_the_peak_is_told_once_it_is_measured() {
    let ((), found) = profile(|| drop(matrix(65, 130).exp().to_vec::<f32>().unwrap()));
    let plain = found.key_averages();
    assert!(!plain.table(3).contains("of peak"));
    assert_eq!(plain.share_of_peak(&plain.rows[0]), None);
    let all = plain.of_peak();
    let row = &all.rows[0];
    assert!(all.share_of_peak(row).unwrap() > 0.0);
    assert!(all.table(3).contains("of peak"), "{}", all.table(3));
    // A kernel that takes twice as long reaches half the share.
    let mut slow = row.clone();
    slow.total *= 2;
    let half = all.share_of_peak(&slow).unwrap() / all.share_of_peak(row).unwrap();
    assert!((0.49..0.51).contains(&half), "{half}");
}

/// Batches of numbers that take a while.
fn slow_batches() -> kiln::Result<DataLoader<Tensor>> {
    let rows: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let data = TensorDataset::new(Tensor::from(rows))?.map(|x: Tensor| {
        std::thread::sleep(Duration::from_millis(5));
        Ok(x)
    });
    DataLoader::new(data).batch_size(2).build()
}

#[test]
fn compilations_have_reasons_and_waits_for_data_are_timed() -> kiln::Result<()> {
    let (x, loader) = (matrix(7, 11), slow_batches()?);
    x.realize()?;
    let (done, found) = profile(|| {
        for k in [3.5, 4.5, 5.5] {
            (&x * k).cumsum(1).atanh().to_vec::<f32>()?;
        }
        compile(&x, |x| x.cosh())?.run(&x)?;
        loader.iter().try_for_each(|batch| batch.map(drop))
    });
    done?;
    let reasons: Vec<&str> = found.compilations().iter().map(|c| &c.reason[..]).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(
        reasons[1].contains("3.5") && reasons[1].contains("4.5"),
        "{reasons:?}"
    );
    assert_eq!(reasons[2], "compile was called");
    for c in found.compilations() {
        assert!(
            c.loc.to_string().contains("tests/kiln/profile.rs:"),
            "{c:?}"
        );
        assert!(
            !c.time.is_zero() && c.start + c.time <= found.wall_time(),
            "{c:?}"
        );
    }
    // Three batches and the end.
    assert_eq!(found.waits().len(), 4);
    assert!(
        found.wait_time() >= Duration::from_millis(30),
        "{:?}",
        found.waits()
    );
    let table = found.key_averages().table(3);
    assert!(
        table.contains(reasons[1]) && table.contains("for data, 4 times"),
        "{table}"
    );
    let trace = found.to_chrome_trace();
    well_formed(&trace).unwrap();
    assert!(trace.contains("\"name\": \"DataLoader\"") && trace.contains("compile at "));
    let page = found.to_html();
    for wanted in [
        "DataLoader, ",
        "in 4 waits",
        "compile was called",
        "is an input of the plan from now on",
    ] {
        assert!(page.contains(wanted), "{wanted} in {page}");
    }
    let count = page.matches("<rect ").count();
    assert_eq!(count, found.runs().len() + found.events().len() + 3 + 4);
    Ok(())
}

/// Keeps the events of Kiln's targets as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.target().starts_with("kiln::")
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let mut text = Text(event.metadata().target().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn the_log_tells_compilations_cache_hits_and_waits() -> kiln::Result<()> {
    let (x, loader, log) = (matrix(5, 13), slow_batches()?, Log::default());
    x.realize()?;
    let logged = || std::mem::take(&mut *log.0.lock().unwrap());
    tracing::subscriber::with_default(log.clone(), || {
        let read = || (&x * 2.5).cumsum(0).asinh().to_vec::<f32>();
        read()?;
        let first = logged();
        let compiled = |l: &&String| l.starts_with("kiln::compile") && l.contains("kernels=");
        assert_eq!(first.iter().filter(compiled).count(), 1, "{first:?}");
        assert!(first[0].contains("tests/kiln/profile.rs:"), "{first:?}");
        read()?;
        let second = logged();
        assert!(
            second.len() == 1 && second[0].starts_with("kiln::cache"),
            "{second:?}"
        );
        loader.iter().try_for_each(|batch| batch.map(drop))?;
        let waits = logged();
        assert!(
            waits
                .iter()
                .any(|l| l.starts_with("kiln::data") && l.contains("DataLoader")),
            "{waits:?}"
        );
        Ok(())
    })
}
