//! Configuration from TOML and the environment, and the errors for wrong values.

use std::time::Duration;

use apus::{Config, Delivery, Links, Node, StartError};

#[test]
fn a_toml_text_changes_what_it_names() {
    let text = r#"
        listen = "127.0.0.1:7000"
        delivery = "fullbusy"
        receive_buffer = "16 MiB"
        message_max = 1_000_000
        peer_timeout = "250 ms"
        pacing = false
    "#;
    let config = Config::from_toml_str(text).unwrap();
    assert_eq!(config.listen_address(), "127.0.0.1:7000".parse().unwrap());
    assert_eq!(config.delivery_mode(), Delivery::fullbusy());
    let mut wanted = Config::new();
    wanted.listen("127.0.0.1:7000".parse().unwrap()).delivery(Delivery::fullbusy());
    wanted.receive_buffer(16 << 20);
    let timeout = Duration::from_millis(250);
    wanted.message_max(1_000_000).peer_timeout(timeout).pacing(false);
    assert_eq!(format!("{config:?}"), format!("{wanted:?}"));
}

#[test]
fn the_environment_has_the_last_word() {
    let mut config = Config::from_toml_str("delivery = 'base'\nlisten = '[::]:9'").unwrap();
    config
        .apply_variables(|name| (name == "APUS_DELIVERY").then(|| "suspend:20,defer=2".to_owned()))
        .unwrap();
    let wanted = Delivery::suspend_after(Duration::from_micros(20)).with_defer_count(2);
    assert_eq!(config.delivery_mode(), wanted);
    assert_eq!(config.listen_address(), "[::]:9".parse().unwrap());
    config.apply_environment().unwrap();
}

#[test]
fn wrong_values_are_named_with_what_is_allowed() {
    for (text, wanted) in [
        (
            "delivery = 'suspend:20,budget=0'",
            "delivery = 'suspend:20,budget=0': expected budget to be a number from 1 to 1,024",
        ),
        ("listen = 'here'", "listen = 'here': expected IP:PORT, like 0.0.0.0:20146 or [::]:0"),
        ("priorities = 9", "priorities = '9': expected a number from 1 to 8"),
        ("pacing = 1", "pacing = '1': expected true or false"),
        ("peer_timeout = 5", "peer_timeout = '5': expected a time from 10 ms to 1 h"),
        ("burst = '1 kB'", "burst = '1 kB': expected a size from 1,500 B to 16 MiB"),
        (
            "shm_dir = '/proc/version'",
            "shm_dir = '/proc/version': expected none, or the absolute path, of up to 54 bytes, of a directory that exists",
        ),
    ] {
        assert_eq!(Config::from_toml_str(text).unwrap_err().to_string(), wanted);
    }
}

#[test]
fn wrong_keys_texts_files_and_variables_are_named() {
    let error = Config::from_toml_str("colour = 'red'").unwrap_err().to_string();
    assert!(error.starts_with("unknown setting 'colour': expected one of listen, "));
    let error = Config::from_toml_str("delivery = ").unwrap_err().to_string();
    assert!(error.starts_with("not TOML: "), "{error}");
    let error = Config::from_file("/nonexistent/apus.toml").unwrap_err().to_string();
    assert!(error.starts_with("cannot read /nonexistent/apus.toml: "), "{error}");
    let error = Config::new()
        .apply_variables(|name| (name == "APUS_PRIORITIES").then(|| "many".to_owned()))
        .unwrap_err();
    assert_eq!(error.to_string(), "APUS_PRIORITIES = 'many': expected a number from 1 to 8");
}

#[test]
fn a_server_listens_where_clients_look() {
    assert_eq!(Config::server().listen_address(), "0.0.0.0:20146".parse().unwrap());
    assert_eq!(Config::new().listen_address(), "0.0.0.0:0".parse().unwrap());
}

type Change = fn(&mut Config) -> &mut Config;

#[test]
fn a_setter_given_a_wrong_value_keeps_the_node_from_starting() {
    let wrong: [(Change, &str); 8] = [
        (|c| c.shards(0), "shards = '0': expected a number from 1 to 64"),
        (|c| c.shards(65), "shards = '65': expected a number from 1 to 64"),
        (|c| c.max_packet(9), "max_packet = '9 B': expected a size from 548 B to 65,507 B"),
        (|c| c.peers_max(0), "peers_max = '0': expected a number from 1 to 1,048,576"),
        (
            |c| c.peer_timeout(Duration::ZERO).priorities(9),
            "peer_timeout = '0': expected a time from 10 ms to 1 h",
        ),
        (
            |c| c.delivery(Delivery::base().with_budget(0)),
            "delivery = 'base,budget=0': expected budget to be a number from 1 to 1,024",
        ),
        (
            |c| c.shm_dir(Some("/nonexistent".into())),
            "shm_dir = '/nonexistent': expected none, or the absolute path, of up to 54 bytes, of a directory that exists",
        ),
        (
            |c| c.max_packet(550).link(Links::Both),
            "max_packet = '550': expected at least 556 B with 'link = both'",
        ),
    ];
    for (set, message) in wrong {
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().unwrap());
        set(&mut config);
        assert_eq!(config.check().unwrap_err().to_string(), message);
        let error = Node::start(&config).unwrap_err();
        assert!(matches!(error, StartError::Config(_)), "{error}");
        assert_eq!(config.open_link().err().unwrap().to_string(), message);
    }
}

/// A value that a setting refuses. Where patterns are allowed, `x` is a DNS name.
fn wrong_value(key: &str) -> &str {
    match key {
        "tls_servers" => "*",
        "tls_deny" => "any",
        _ => "x",
    }
}

#[test]
fn every_setting_has_a_key_and_a_variable() {
    let mut seen = std::collections::BTreeSet::new();
    for setting in Config::settings() {
        let key = setting.key;
        assert!(seen.insert(key), "{key} twice");
        assert_eq!(setting.variable, format!("APUS_{}", key.to_uppercase()));
        let wrong = wrong_value(key);
        let message = format!("{key} = '{wrong}': expected ");
        let error = Config::new().set(key, wrong).unwrap_err().to_string();
        assert!(error.starts_with(&message), "{error}");
        let error = Config::from_toml_str(&format!("{key} = '{wrong}'")).unwrap_err().to_string();
        assert!(error.starts_with(&message), "{error}");
        let error = Config::new()
            .apply_variables(|name| (name == setting.variable).then(|| wrong.to_owned()))
            .unwrap_err();
        assert!(error.to_string().starts_with(&setting.variable), "{error}");
    }
}

#[test]
fn a_program_may_have_it_in_its_own_configuration() {
    type Program = std::collections::BTreeMap<String, Config>;
    let program: Program = toml::from_str("[homa]\npriorities = 4\nburst = '8 KiB'").unwrap();
    let mut wanted = Config::new();
    wanted.priorities(4).burst(8 << 10);
    assert_eq!(format!("{:?}", program["homa"]), format!("{wanted:?}"));
    let error = toml::from_str::<Program>("[homa]\npriorities = 9").unwrap_err().to_string();
    assert!(error.contains("priorities = '9': expected a number from 1 to 8"), "{error}");
}
