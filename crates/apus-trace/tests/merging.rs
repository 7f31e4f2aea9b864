//! Traces of two hosts are merged into one.

use apus_trace::{
    Anchor, Clock, EventNames, Merged, Record, RingTrace, STAGES, Timeline, Trace, calls,
};

/// A trace of a host whose clock is `ahead` ns ahead and has `per_nano` ticks per nanosecond.
fn trace(host: u8, ahead: u64, per_nano: u64, happened: &[(u64, &str, u32)]) -> Trace {
    let names = ["sendmsg_request", "data_xmit", "data_received", "request_complete"]
        .into_iter()
        .chain(["recvmsg_request", "sendmsg_response", "response_complete", "recvmsg_response"])
        .chain(["kernel_recv", "peer_met"]);
    let events = names.zip(0..).map(|(name, number)| EventNames {
        number,
        name: name.to_owned(),
        arguments: match name {
            "kernel_recv" => vec!["ago".to_owned()],
            "peer_met" => ["before", "pair"].map(str::to_owned).to_vec(),
            _ => ["id", "pair", "c", "d"].map(str::to_owned).to_vec(),
        },
        text: format!("{name} {{}}"),
    });
    let events: Vec<_> = events.collect();
    let records = happened.iter().map(|&(nanos, name, id)| Record {
        ticks: (nanos + ahead) * per_nano,
        event: events.iter().find(|event| event.name == name).unwrap().number,
        arguments: [id, 9, if name.starts_with("data") { 0 } else { 100 }, 0],
    });
    Trace {
        clock: Clock::Tsc,
        program: "test".to_owned(),
        pid: host.into(),
        machine: [host; 16],
        realtime: ahead,
        anchors: vec![
            Anchor { ticks: 0, nanos: 0 },
            Anchor { ticks: 1_000_000 * per_nano, nanos: 1_000_000 },
        ],
        rings: vec![RingTrace { records: records.collect(), ..RingTrace::default() }],
        events,
        without_ring: 0,
    }
}

/// Time, event and call of a record.
type Happened = (u64, &'static str, u32);

/// A call that takes 1 µs from stage to stage, and 5 µs from host to host.
fn call(id: u32, start: u64) -> (Vec<Happened>, Vec<Happened>) {
    let (mut client, mut server, mut at) = (Vec::new(), Vec::new(), start);
    for (index, stage) in STAGES.iter().enumerate() {
        let crosses = index > 0 && stage.at_client != STAGES[index - 1].at_client;
        at += if index == 0 {
            0
        } else if crosses {
            5_000
        } else {
            1_000
        };
        match stage.at_client {
            true => client.push((at, stage.event, id)),
            false => server.push((at, stage.event, id | 1)),
        }
    }
    (client, server)
}

#[test]
fn clocks_of_two_hosts_are_aligned_by_their_calls() {
    let (client, server) = call(128, 1_000);
    let traces = [trace(1, 0, 3, &client), trace(2, 777_000, 1, &server)];
    let merged = Merged::of(&traces);
    // By the clocks of the day, host 2 is 777 µs ahead both of its own clock and of host 1.
    let offset = merged.offsets[0];
    assert_eq!(
        (offset.trace, offset.nanos, offset.least_delay_nanos),
        (1, -2 * 777_000, Some(5_000))
    );
    let calls = calls(&merged);
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].id, calls[0].pair, calls[0].request), (128, 9, Some(100)));
    assert_eq!(calls[0].round_trip(), Some(7 * 1_000 + 2 * 5_000));
    let timeline = Timeline::of(&calls, None).unwrap();
    assert_eq!((timeline.requests, timeline.calls), ((100, 100), 1));
    let sum: f64 = timeline.stages.iter().map(|stage| stage.delta).sum();
    assert!((sum - 17_000.0).abs() < 1.0, "{sum}");
    assert_eq!(timeline.stages[2].p50, 5_000);
    assert_eq!(Timeline::of(&calls, Some((1, 99))), None);
    assert!(Timeline::of(&calls, Some((99, 100))).is_some());
}

#[test]
fn traces_of_one_host_share_a_clock() {
    let (client, server) = call(2, 0);
    let traces = [trace(1, 0, 2, &client), trace(1, 0, 2, &server)];
    let merged = Merged::of(&traces);
    assert!(merged.offsets.is_empty());
    assert_eq!(calls(&merged)[0].round_trip(), Some(17_000));
    // A merged trace survives a round trip through its file.
    let again = Merged::of(&[merged.to_trace()]);
    assert_eq!(again.moments, merged.moments);
}

#[test]
fn a_call_of_which_records_are_missing_has_no_timeline() {
    let (client, _) = call(2, 0);
    let calls = calls(&Merged::of(&[trace(1, 0, 1, &client)]));
    assert_eq!(calls[0].all_stages(), None);
    assert_eq!(calls[0].round_trip(), Some(17_000));
    assert_eq!(Timeline::of(&calls, None), None);
    assert_eq!(Merged::of(&[]).moments, []);
}

#[test]
fn the_kernel_is_a_stage_of_its_own_where_it_reports_the_time() {
    let (mut client, mut server) = call(2, 1_000);
    for happened in [&mut client, &mut server] {
        let received = happened.iter().find(|it| it.1 == "data_received").unwrap().0;
        // 2 µs before the batch was taken.
        happened.push((received + 500, "kernel_recv", 2_500));
        happened.sort_unstable();
    }
    let merged = Merged::of(&[trace(1, 0, 1, &client), trace(2, 0, 1, &server)]);
    let timeline = Timeline::of(&calls(&merged), None).unwrap();
    let names: Vec<_> = timeline.stages.iter().map(|stage| stage.name).collect();
    assert_eq!(
        (names[2], names[3], names[8]),
        ("request_kernel", "request_received", "response_kernel")
    );
    assert_eq!((timeline.stages[2].delta, timeline.stages[3].delta), (3_000.0, 2_000.0));
}

#[test]
fn the_first_call_to_a_peer_has_the_pair_of_later_ones() {
    let (client, server) = call(2, 1_000);
    let (mut client, mut server) = (trace(1, 0, 1, &client), trace(1, 0, 1, &server));
    server.pid = 2;
    // The client does not know the peer's token before the first packet is answered.
    for record in &mut client.rings[0].records {
        record.arguments[1] = 7;
    }
    let met = client.events.iter().find(|event| event.name == "peer_met").unwrap().number;
    let met = Record { ticks: 2_500, event: met, arguments: [7, 9, 0, 0] };
    let separate = Merged::of(&[client.clone(), server.clone()]);
    assert_eq!(calls(&separate).len(), 2);
    client.rings[0].records.push(met);
    let calls = calls(&Merged::of(&[client, server]));
    assert_eq!((calls.len(), calls[0].pair), (1, 9));
    assert!(calls[0].all_stages().is_some());
}

/// Two hosts that call each other use the same ids and one pair.
#[test]
fn clocks_of_hosts_that_call_each_other_are_aligned() {
    let (first, second) = (call(128, 1_000), call(128, 4_000));
    let of = |calls: [&Vec<Happened>; 2]| calls.map(Clone::clone).concat();
    let traces = [
        trace(1, 0, 1, &of([&first.0, &second.1])),
        trace(2, 777_000, 1, &of([&second.0, &first.1])),
    ];
    let offset = Merged::of(&traces).offsets[0];
    assert_eq!((offset.nanos, offset.least_delay_nanos), (-2 * 777_000, Some(5_000)));
}

/// Calls over raw links have no pair, so any other host with the id may have sent a packet.
#[test]
fn a_packet_that_several_hosts_may_have_sent_aligns_no_clock() {
    let (client, server) = call(128, 1_000);
    let mut traces =
        [trace(1, 0, 1, &client), trace(2, 777_000, 1, &client), trace(3, 0, 1, &server)];
    for trace in &mut traces {
        trace.rings[0].records.iter_mut().for_each(|record| record.arguments[1] = 0);
    }
    let merged = Merged::of(&traces);
    assert!(merged.offsets.iter().all(|offset| offset.least_delay_nanos.is_none()));
}

/// Clones of one snapshot of a virtual machine have one boot id and separate clocks.
#[test]
fn hosts_with_one_boot_id_and_different_days_share_no_clock() {
    let (client, server) = call(128, 1_000);
    let (client, mut server) = (trace(1, 0, 1, &client), trace(1, 777_000, 1, &server));
    assert!(Merged::of(&[client.clone(), server.clone()]).offsets.is_empty());
    server.realtime += 60_000_000_000;
    let merged = Merged::of(&[client, server]);
    assert_eq!(merged.offsets[0].least_delay_nanos, Some(5_000));
}
