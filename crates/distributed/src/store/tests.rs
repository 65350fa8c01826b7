use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn report(rank: usize, from: u64, calls: &[&str]) -> Report {
    Report {
        group: "g".into(),
        rank,
        members: vec![0, 1, 2],
        from,
        calls: calls.iter().map(|c| c.to_string()).collect(),
        fault: None,
    }
}

#[test]
fn ranks_meet_and_the_missing_ones_are_named() {
    let server = Server::open(0).unwrap();
    let address = &format!("127.0.0.1:{}", server.port());
    std::thread::scope(|s| {
        for rank in 0..3 {
            s.spawn(move || {
                let store = Store::connect(address, rank, SHORT).unwrap();
                store.meet("start", &[0, 1, 2], SILENCE).unwrap();
                assert!(store.add("n", 2).unwrap() <= 6);
                store.set(&format!("k{rank}"), &[rank as u8; 1000]).unwrap();
                let next = (rank + 1) % 3;
                let value = store.get(&format!("k{next}"), SILENCE).unwrap();
                assert_eq!(value, Some(vec![next as u8; 1000]));
                assert_eq!(store.get("nothing", Duration::ZERO).unwrap(), None);
                if rank != 1 {
                    let e = store.meet("end", &[0, 1, 2], SHORT).unwrap_err();
                    assert_eq!(e, "rank 1 of 3 did not come within 0.2 s");
                }
                let large = vec![255; 1 << 20];
                assert!(store.set("large", &large).is_err());
            });
        }
    });
}

#[test]
fn reports_show_different_calls_and_ranks_that_ended() {
    let server = Server::open(0).unwrap();
    let address = &format!("127.0.0.1:{}", server.port());
    let stores: Vec<Store> = (0..3)
        .map(|rank| Store::connect(address, rank, SHORT).unwrap())
        .collect();
    let status = stores[0].report(report(0, 0, &["a", "b"])).unwrap();
    assert_eq!((status.fault, status.begun), (None, vec![2, 0, 0]));
    let mut stores = stores.into_iter();
    let (first, second) = (stores.next().unwrap(), stores.next().unwrap());
    drop(stores);
    let deadline = Instant::now() + Duration::from_secs(10);
    while second.report(report(1, 0, &["a"])).unwrap().gone != [2] {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = second.report(report(1, 1, &["c"])).unwrap();
    let text = "the ranks call different operations: rank 0 calls b, rank 1 calls c";
    assert_eq!(status.fault.as_deref(), Some(text));
    assert_eq!(
        first.report(report(0, 2, &[])).unwrap().fault.as_deref(),
        Some(text)
    );
    first.leave().unwrap();
    drop(first);
    assert_eq!(second.report(report(1, 2, &[])).unwrap().gone, [2]);
}

#[test]
fn a_taken_port_and_a_stranger_are_errors() {
    let server = Server::open(0).unwrap();
    let e = Server::open(server.port()).err().unwrap();
    assert!(e.contains("is taken") && e.contains("MASTER_PORT"), "{e}");
    // Who does not know the secret gets nothing.
    let mut stranger = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let mut hello = [0; MAGIC.len() + NONCE];
    stranger.read_exact(&mut hello).unwrap();
    stranger.write_all(&[1; 4 + NONCE + MAC]).unwrap();
    assert_eq!(stranger.read(&mut hello).unwrap_or(0), 0);
    // Another server, and none at all, are told apart.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(&[b'?'; 100]).unwrap();
        std::thread::sleep(SHORT);
    });
    let e = Store::connect(&address, 0, SHORT).err().unwrap();
    assert!(e.contains("is no store of Kiln"), "{e}");
    answer.join().unwrap();
    let e = Store::connect(&address, 1, SHORT).err().unwrap();
    assert!(e.contains("rank 0 did not open the store"), "{e}");
}

#[test]
fn votes_are_decided_once_for_all() {
    let server = Server::open(0).unwrap();
    let address = &format!("127.0.0.1:{}", server.port());
    let members = [0, 1, 2];
    let stores = members.map(|rank| Store::connect(address, rank, SHORT).unwrap());
    let vote = |rank: usize, (number, round): (u64, u32), proposal: &str, timeout| {
        let vote = Vote {
            group: "g".into(),
            rank,
            members: members.to_vec(),
            number,
            round,
            proposal: proposal.into(),
        };
        stores[rank].vote(vote, timeout).unwrap()
    };
    // The votes of ranks that come one after the other.
    let votes = |at, proposals: [&str; 3]| {
        std::thread::scope(|s| {
            let rank = |rank: usize| {
                let vote = &vote;
                s.spawn(move || {
                    std::thread::sleep(SHORT / 10 * rank as u32);
                    vote(rank, at, proposals[rank], SILENCE)
                })
            };
            let ranks: Vec<_> = members.map(rank).into();
            let decided = ranks.into_iter().map(|r| r.join().unwrap());
            decided.collect::<Vec<bool>>()
        })
    };
    assert_eq!(votes((0, 0), ["a", "a", "a"]), [true; 3]);
    assert_eq!(votes((0, 1), ["a", "a", "b"]), [false; 3]);
    // Without rank 2, which then comes late.
    assert!(!vote(0, (1, 0), "a", SHORT));
    assert_eq!(votes((1, 0), ["a", "a", "a"]), [false; 3]);
    // A rank that has begun the operation without a vote is not waited for.
    let start = Instant::now();
    stores[1].report(report(1, 0, &["x", "x", "x"])).unwrap();
    assert!(!vote(0, (2, 0), "a", SILENCE));
    assert!(start.elapsed() < SILENCE / 2);
    assert_eq!(votes((3, 0), ["a", "a", "a"]), [true; 3]);
}
