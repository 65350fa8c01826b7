//! `kiln launch` where this command itself starts the processes.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs a line of shell as every rank.
fn launch(options: &[&str], line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(["launch", "--backend", "nccl"]).args(options);
    command
        .args(["--", "sh", "-c", line])
        .env_remove("KILN_STORE_SECRET");
    command.output().expect("the command runs")
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn every_rank_of_every_node_knows_its_place() {
    let node = ["--nproc-per-node", "2", "--nnodes", "3", "--node-rank", "1"];
    let at = ["--master-addr", "first", "--master-port", "1234"];
    let line = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT ${KILN_STORE_SECRET:-none}";
    let output = launch(&[&node[..], &at].concat(), line);
    assert!(output.status.success());
    assert_eq!(
        lines(&output),
        ["[2] 2 6 0 2 first:1234 none", "[3] 3 6 1 2 first:1234 none"]
    );
    // On one node, all get one secret.
    let output = launch(&["--nproc-per-node", "2"], "echo $KILN_STORE_SECRET");
    let found = lines(&output);
    let secrets: Vec<&str> = found.iter().map(|l| &l[4..]).collect();
    assert!(
        secrets[0].len() == 64 && secrets[0] == secrets[1],
        "{secrets:?}"
    );
    let output = launch(&["--nnodes", "2", "--node-rank", "2"], "true");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && error.contains("there is no node 2 among 2"),
        "{error}"
    );
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let start = Instant::now();
    let line = "if [ $RANK = 1 ]; then exit 7; fi; sleep 300";
    let output = launch(&["--nproc-per-node", "3"], line);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{error}");
    assert!(
        error.contains("rank 1 of 3 ended with exit status: 7"),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(60));
}
