//! Tests of executable memory.
#![cfg(target_os = "linux")]

use kiln_x86::{Asm, Code, Gpr};

fn returns(n: i64) -> Vec<u8> {
    let mut a = Asm::new(false);
    a.mov_number(Gpr::RAX, n);
    a.leave(&[], 0);
    a.finish()
}

/// Returns the permissions of an address, from the process's memory map.
fn permissions(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let inside = (bound(begin)?..bound(end)?).contains(&address);
        inside.then(|| rest[..4].to_string())
    })
}

#[test]
fn code_is_executable_and_not_writable() {
    let code = Code::new(&returns(7)).unwrap();
    for at in [0, code.bytes().len() - 1] {
        let permissions = permissions(code.entry() as usize + at);
        assert_eq!(permissions.as_deref(), Some("r-xp"));
    }
    assert_eq!(code.bytes(), returns(7));
}

#[test]
fn code_of_many_pages_and_of_none() {
    let long: Vec<u8> = [0x90]
        .repeat(3 * 4096 + 5)
        .into_iter()
        .chain(returns(9))
        .collect();
    let code = Code::new(&long).unwrap();
    let last = code.entry() as usize + long.len() - 1;
    assert_eq!(permissions(last).as_deref(), Some("r-xp"));
    // SAFETY: the code is a function without arguments.
    let f: extern "sysv64" fn() -> i64 = unsafe { std::mem::transmute(code.entry()) };
    assert_eq!(f(), 9);
    assert!(Code::new(&[]).unwrap().bytes().is_empty());
}

#[test]
fn code_runs_on_many_threads_and_goes_with_its_value() {
    let codes: Vec<Code> = (0..64).map(|n| Code::new(&returns(n)).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (n, code) in codes.iter().enumerate() {
                    // SAFETY: as above.
                    let f: extern "sysv64" fn() -> i64 =
                        unsafe { std::mem::transmute(code.entry()) };
                    assert_eq!(f(), n as i64);
                }
            });
        }
    });
}

/// Tests the list that profilers read. The variable is read when code is made, so another process sets it.
#[test]
fn code_is_listed_for_profilers() {
    const LISTS: &str = "KILN_PERF_MAP";
    if std::env::var_os(LISTS).is_some_and(|v| v == "1") {
        let code = Code::named(&returns(1), "a sum\nof rows").unwrap();
        let path = format!("/tmp/perf-{}.map", std::process::id());
        let list = std::fs::read_to_string(&path).unwrap();
        let (at, len) = (code.entry() as usize, code.bytes().len());
        assert!(
            list.lines()
                .any(|l| l == format!("{at:x} {len:x} a sum of rows")),
            "{list}"
        );
        std::fs::remove_file(path).unwrap();
        return;
    }
    let this = std::env::current_exe().unwrap();
    let only = [
        "--exact",
        "memory::code_is_listed_for_profilers",
        "--test-threads=1",
    ];
    let mut child = std::process::Command::new(this);
    let output = child.args(only).env(LISTS, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}
