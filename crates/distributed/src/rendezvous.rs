//! Where ranks meet: `init_method`, and the variables of launchers.

use crate::group::Init;
use crate::store::{Server, Store};
use kiln_base::file::replace;
use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// This process among the others.
#[derive(Debug, PartialEq)]
pub(crate) struct Assignment {
    pub rank: usize,
    pub ranks: usize,
    /// The rank on this machine, if a launcher says it.
    pub local: Option<usize>,
    point: MeetingPoint,
}

#[derive(Debug, PartialEq)]
enum MeetingPoint {
    /// A host and port of rank 0.
    Tcp(String, u16),
    /// A file that all machines see.
    File(PathBuf),
    /// The port of a store of this machine that is open.
    Open(u16),
    /// A world of one needs none.
    Nowhere,
}

/// A connection to the store; on rank 0 the store too.
pub(crate) struct Rendezvous {
    pub store: Store,
    server: Option<Server>,
    file: Option<PathBuf>,
    ranks: usize,
}

impl Assignment {
    /// The rank in a world on this machine, whose store is open at this port.
    pub fn local(rank: usize, ranks: usize, port: u16) -> Assignment {
        Assignment {
            rank,
            ranks,
            local: Some(rank),
            point: MeetingPoint::Open(port),
        }
    }

    /// The rank that options and variables set. `variable` returns the value of one that is set.
    ///
    /// # Errors
    /// Names what is missing or wrong.
    pub fn from_options(
        options: &Init,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Assignment, String> {
        let number = |names: &[&str]| match names.iter().find_map(|n| Some((n, variable(n)?))) {
            Some((name, text)) => parse::<usize>(name, &text).map(Some),
            None => Ok(None),
        };
        let rank = match options.rank {
            None => number(&["RANK", "SLURM_PROCID"])?,
            given => given,
        };
        let ranks = match options.world_size {
            None => number(&["WORLD_SIZE", "SLURM_NTASKS"])?,
            given => given,
        };
        let local = number(&["LOCAL_RANK", "SLURM_LOCALID"])?;
        let method = &options.init_method[..];
        let is_env = matches!(method, "" | "env://");
        let (rank, ranks) = match (rank, ranks) {
            (None, None) if is_env => (0, 1),
            (Some(rank), Some(ranks)) => (rank, ranks),
            (None, _) => return Err("which rank is this? Set `rank`, or RANK".into()),
            (_, None) => {
                return Err("how many ranks are there? Set `world_size`, or WORLD_SIZE".into());
            }
        };
        if rank >= ranks {
            return Err(format!(
                "there is no rank {rank} among {ranks}: they count from 0"
            ));
        }
        let point = if let Some(path) = method.strip_prefix("file://") {
            MeetingPoint::File(path.into())
        } else if let Some(address) = method.strip_prefix("tcp://") {
            let (host, port) = address
                .rsplit_once(':')
                .ok_or_else(|| format!("{method} has no port: tcp://host:port"))?;
            MeetingPoint::Tcp(host.into(), parse(method, port)?)
        } else if !is_env {
            return Err(format!(
                "there is no init_method `{method}`; use env://, tcp://host:port or file:///path"
            ));
        } else if ranks == 1 {
            MeetingPoint::Nowhere
        } else {
            let host = variable("MASTER_ADDR").or_else(|| slurm_host(variable));
            let host = host
                .ok_or("where is rank 0? Set MASTER_ADDR to the name or address of its machine")?;
            let port = match variable("MASTER_PORT") {
                Some(text) => parse("MASTER_PORT", &text)?,
                None => slurm_port(variable).ok_or(
                    "where is rank 0? Set MASTER_PORT to a port of its machine that is free",
                )?,
            };
            MeetingPoint::Tcp(host, port)
        };
        Ok(Assignment {
            rank,
            ranks,
            local,
            point,
        })
    }

    /// Opens the store on rank 0, and connects to it.
    ///
    /// # Errors
    /// If the port is taken, or rank 0 does not come within the timeout.
    pub fn meet(&self, timeout: Duration) -> Result<Rendezvous, String> {
        let connect =
            |host: &str, port: u16| Store::connect(&format!("{host}:{port}"), self.rank, timeout);
        let (server, file, store) = match &self.point {
            MeetingPoint::Nowhere => return Err("a world of one has no store".into()),
            MeetingPoint::Open(port) => (None, None, connect("127.0.0.1", *port)?),
            MeetingPoint::Tcp(host, port) => {
                let server = (self.rank == 0).then(|| Server::open(*port)).transpose()?;
                (server, None, connect(host, *port)?)
            }
            MeetingPoint::File(path) if self.rank == 0 => {
                // That of an earlier job leads nowhere.
                let _ = std::fs::remove_file(path);
                let server = Server::open(0)?;
                let address = format!("{}:{}", host_name(), server.port());
                replace(path, |to| to.write_all(address.as_bytes()))
                    .map_err(|e| format!("{}: {e}", path.display()))?;
                let store = connect("127.0.0.1", server.port())?;
                (Some(server), Some(path.clone()), store)
            }
            MeetingPoint::File(path) => (None, None, self.connect_by_file(path, timeout)?),
        };
        Ok(Rendezvous {
            store,
            server,
            file,
            ranks: self.ranks,
        })
    }

    /// Connects to the store that a file names, once it is there.
    fn connect_by_file(&self, path: &Path, timeout: Duration) -> Result<Store, String> {
        let start = Instant::now();
        let mut why = "it is not there".to_string();
        while start.elapsed() < timeout {
            // The file of an earlier job may still be there at first.
            if let Ok(address) = std::fs::read_to_string(path) {
                match Store::connect(&local_or_address(&address), self.rank, Duration::ZERO) {
                    Ok(store) => return Ok(store),
                    Err(e) => why = e,
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "rank 0 did not write {} within {} s: {why}",
            path.display(),
            timeout.as_secs_f64()
        ))
    }
}

impl Rendezvous {
    /// Ends the connection; rank 0 waits until the others have done so.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn end(&self) -> Result<(), String> {
        self.store.leave()?;
        if let Some(server) = &self.server {
            server.wait_for_leaving(self.ranks, Duration::from_secs(10));
        }
        Ok(())
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("{name}: `{text}` is not such a number"))
}

/// The first host of a Slurm job.
fn slurm_host(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let list = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST"))?;
    // `node[03-05,09],other` begins with `node03`.
    let (name, numbers) = match list.split_once('[') {
        Some((name, numbers)) if !name.contains(',') => (name, numbers),
        _ => (list.split(',').next()?, ""),
    };
    let first_number = numbers.split(['-', ',', ']']).next().unwrap_or_default();
    Some(format!("{name}{first_number}"))
}

/// A port that follows from the number of a Slurm job.
fn slurm_port(variable: &dyn Fn(&str) -> Option<String>) -> Option<u16> {
    let job: u64 = variable("SLURM_JOB_ID")?.parse().ok()?;
    Some(20_000 + (job % 20_000) as u16)
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

/// The address of a store; on this machine, one that needs no name.
fn local_or_address(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if host == host_name() => format!("127.0.0.1:{port}"),
        _ => address.to_string(),
    }
}

/// The value of an environment variable.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|v| !v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables and their values.
    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn place(options: Init, set: Variables) -> Result<Assignment, String> {
        let set = |name: &str| {
            let variable = set.iter().find(|(n, _)| *n == name);
            variable.map(|(_, value)| value.to_string())
        };
        Assignment::from_options(&options, &set)
    }

    fn tcp(host: &str, port: u16) -> MeetingPoint {
        MeetingPoint::Tcp(host.into(), port)
    }

    #[test]
    fn variables_and_options_say_the_place() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "first"),
            ("MASTER_PORT", "29500"),
        ];
        let rendezvous = place(Init::new(), &torchrun).unwrap();
        let expected = Assignment {
            rank: 3,
            ranks: 4,
            local: Some(1),
            point: tcp("first", 29500),
        };
        assert_eq!(rendezvous, expected);
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_NODELIST", "gpu[07-08,11],other3"),
            ("SLURM_JOB_ID", "1020304"),
        ];
        let rendezvous = place(Init::new(), &slurm).unwrap();
        let expected = Assignment {
            rank: 1,
            ranks: 2,
            local: Some(0),
            point: tcp("gpu07", 20_304),
        };
        assert_eq!(rendezvous, expected);
        for (list, host) in [
            ("a,b", "a"),
            ("a", "a"),
            ("b1,c[2-3]", "b1"),
            ("n[9]", "n9"),
        ] {
            let set = |name: &str| (name == "SLURM_JOB_NODELIST").then(|| list.to_string());
            assert_eq!(slurm_host(&set).as_deref(), Some(host));
        }
        let by_hand = Init::new()
            .rank(2)
            .world_size(5)
            .init_method("tcp://[::1]:7");
        assert_eq!(place(by_hand, &torchrun).unwrap().point, tcp("[::1]", 7));
        let by_file = Init::new()
            .rank(0)
            .world_size(2)
            .init_method("file:///shared/job");
        let expected = MeetingPoint::File("/shared/job".into());
        assert_eq!(place(by_file, &[]).unwrap().point, expected);
        let alone = place(Init::new(), &[]).unwrap();
        assert_eq!(
            (alone.rank, alone.ranks, alone.point),
            (0, 1, MeetingPoint::Nowhere)
        );
    }

    #[test]
    fn missing_or_wrong_values_are_named() {
        let two = [("RANK", "0"), ("WORLD_SIZE", "2")];
        let tcp = |method: &str| Init::new().rank(0).world_size(2).init_method(method);
        let cases: [(Init, Variables, &str); 8] = [
            (Init::new(), &two, "Set MASTER_ADDR"),
            (
                Init::new(),
                &[two[0], two[1], ("MASTER_ADDR", "a")],
                "Set MASTER_PORT",
            ),
            (Init::new(), &[("WORLD_SIZE", "2")], "or RANK"),
            (
                Init::new(),
                &[("RANK", "x"), ("WORLD_SIZE", "2")],
                "RANK: `x` is not such a number",
            ),
            (
                Init::new().rank(2).world_size(2),
                &[],
                "there is no rank 2 among 2",
            ),
            (tcp("tcp://host"), &[], "has no port"),
            (tcp("tcp://host:99999"), &[], "is not such a number"),
            (
                tcp("udp://host"),
                &[],
                "use env://, tcp://host:port or file:///path",
            ),
        ];
        for (options, set, expected) in cases {
            let e = place(options, set).unwrap_err();
            assert!(e.contains(expected), "{e}");
        }
    }

    #[test]
    fn a_file_tells_the_others_where_the_store_is() {
        let path = env::temp_dir().join(format!("kiln-rendezvous-{}", std::process::id()));
        // The file of an earlier job.
        std::fs::write(&path, "127.0.0.1:1").unwrap();
        let place = |rank| Assignment {
            rank,
            ranks: 2,
            local: None,
            point: MeetingPoint::File(path.clone()),
        };
        std::thread::scope(|s| {
            for rank in [1, 0] {
                let place = place(rank);
                s.spawn(move || {
                    let met = place.meet(Duration::from_secs(20)).unwrap();
                    met.store
                        .meet("start", &[0, 1], Duration::from_secs(20))
                        .unwrap();
                    met.end().unwrap();
                });
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        assert!(!path.exists());
        let e = place(1).meet(Duration::from_millis(50)).err().unwrap();
        assert!(e.contains("rank 0 did not write"), "{e}");
    }
}
