//! A panic of the program, in the thread that applies or in the one that reads.

use std::process::Command;
use std::thread;

const WHERE: &str = "MIRRORD_TEST_PANIC";

/// Run by the tests below, as a process of its own.
#[test]
fn child() {
    let Ok(thread) = std::env::var(WHERE) else {
        return;
    };
    mirrord_receive::failure::report_panics();
    match thread.as_str() {
        "main" => panic!("out of\norder\tat {}", 7),
        _ => {
            let _ = thread::spawn(|| panic!("not possible")).join();
        }
    }
}

fn panicked(thread: &str) -> (Option<i32>, String) {
    let program = std::env::current_exe().unwrap();
    let words = ["--exact", "child", "--nocapture", "--test-threads=1"];
    let done = Command::new(program)
        .args(words)
        .env(WHERE, thread)
        .output();
    let done = done.unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[test]
fn a_panic_ends_the_process_with_one_line() {
    for (thread, why) in [("main", "out of order at 7"), ("reader", "not possible")] {
        let (status, said) = panicked(thread);
        assert_eq!(status, Some(1), "{said}");
        let wanted = format!("bug\t{why} (");
        assert!(said.starts_with(&wanted) && said.ends_with(")\n"), "{said}");
        assert_eq!(said.matches(['\n', '\t']).count(), 2, "{said}");
    }
}
