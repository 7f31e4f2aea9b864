//! gRPC's service config, a JSON text.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::client::backoff::Backoff;
use crate::client::hedge::Hedge;
use crate::client::retry::{MethodConfig, Retry, RetryPolicy};
use crate::code::Code;

/// Why a text is no service config.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("service config: {place}: {expected}")]
pub struct ServiceConfigError {
    place: String,
    expected: String,
}

fn wrong<T>(place: &str, expected: impl Into<String>) -> Result<T, ServiceConfigError> {
    Err(ServiceConfigError { place: place.to_owned(), expected: expected.into() })
}

type Parsed<T> = Result<T, ServiceConfigError>;

/// Largest number of methods that a config may name.
const METHODS_MAX: usize = 10_000;

impl Retry {
    /// Reads `methodConfig` (with `retryPolicy`, `hedgingPolicy`, `timeout` and `waitForReady`) and `retryThrottling` of a [gRPC
    /// service config](https://github.com/grpc/grpc/blob/master/doc/service_config.md). Other members are ignored. More than five
    /// attempts count as five, and a hedging policy has one copy, after its `hedgingDelay`.
    ///
    /// # Errors
    ///
    /// [`ServiceConfigError`] with the place of the fault.
    ///
    /// ```
    /// use apus_rpc::Retry;
    ///
    /// let retry = Retry::from_service_config(
    ///     r#"{
    ///         "methodConfig": [{
    ///             "name": [{ "service": "shop.Calc", "method": "Add" }],
    ///             "timeout": "1.5s",
    ///             "retryPolicy": {
    ///                 "maxAttempts": 4,
    ///                 "initialBackoff": "0.05s",
    ///                 "maxBackoff": "1s",
    ///                 "backoffMultiplier": 1.6,
    ///                 "retryableStatusCodes": ["UNAVAILABLE"]
    ///             }
    ///         }],
    ///         "retryThrottling": { "maxTokens": 10, "tokenRatio": 0.1 }
    ///     }"#,
    /// )?;
    /// # Ok::<(), apus_rpc::ServiceConfigError>(())
    /// ```
    pub fn from_service_config(json: &str) -> Result<Self, ServiceConfigError> {
        let config = match serde_json::from_str(json) {
            Ok(Value::Object(config)) => config,
            Ok(_) => return wrong("the text", "expected an object"),
            Err(error) => return wrong("the text", error.to_string()),
        };
        let mut retry = Self::new();
        if let Some(throttling) = object(&config, "retryThrottling")? {
            let max = number(throttling, "maxTokens")?;
            let ratio = number(throttling, "tokenRatio")?;
            if !(0.0 < max && max <= 1_000.0 && 0.0 < ratio) {
                return wrong(
                    "retryThrottling",
                    "expected 0 < maxTokens <= 1000 and tokenRatio > 0",
                );
            }
            retry = retry.throttle(max, ratio);
        }
        for method in list(&config, "methodConfig")? {
            let Value::Object(method) = method else {
                return wrong("methodConfig", "expected objects");
            };
            let settings = settings(method)?;
            for name in list(method, "name")? {
                // The first one counts, as in gRPC a name occurs once.
                retry.methods.entry(key(name)?).or_insert(settings);
                if retry.methods.len() > METHODS_MAX {
                    return wrong("methodConfig", format!("at most {METHODS_MAX} names"));
                }
            }
        }
        Ok(retry)
    }
}

/// The key of a name in [`Retry::methods`].
fn key(name: &Value) -> Parsed<String> {
    let part = |part| match name.get(part) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => wrong("name", format!("expected a text as {part}")),
    };
    match (part("service")?, part("method")?) {
        ("", "") => Ok(String::new()),
        ("", _) => wrong("name", "a method needs a service"),
        (service, method) => Ok(format!("/{service}/{method}")),
    }
}

fn settings(method: &Map<String, Value>) -> Parsed<MethodConfig> {
    let retry = object(method, "retryPolicy")?.map(policy).transpose()?;
    let hedge = match object(method, "hedgingPolicy")? {
        Some(hedging) => {
            let delay = optional_duration(hedging, "hedgingDelay")?;
            Some(Hedge::after(delay.unwrap_or_default()))
        }
        None => None,
    };
    if retry.is_some() && hedge.is_some() {
        return wrong("methodConfig", "retryPolicy and hedgingPolicy exclude each other");
    }
    let deadline = optional_duration(method, "timeout")?;
    let waits_for_ready = match method.get("waitForReady") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(waits)) => Some(*waits),
        Some(_) => return wrong("waitForReady", "expected true or false"),
    };
    Ok(MethodConfig { retry, hedge, deadline, waits_for_ready })
}

fn policy(policy: &Map<String, Value>) -> Parsed<RetryPolicy> {
    let attempts = number(policy, "maxAttempts")?;
    if attempts < 2.0 || attempts.fract() != 0.0 {
        return wrong("maxAttempts", "expected a whole number from 2");
    }
    let backoff = Backoff {
        first: duration(policy, "initialBackoff")?,
        factor: number(policy, "backoffMultiplier")?,
        longest: duration(policy, "maxBackoff")?,
    };
    if backoff.first.is_zero() || backoff.longest.is_zero() || backoff.factor <= 0.0 {
        return wrong("retryPolicy", "expected backoffs and a multiplier above 0");
    }
    let codes = list(policy, "retryableStatusCodes")?;
    if codes.is_empty() {
        return wrong("retryableStatusCodes", "expected one or more codes");
    }
    let codes = codes.iter().map(code).collect::<Parsed<Vec<_>>>()?;
    // The cast saturates, and `attempts` limits the number.
    let all = RetryPolicy::new().attempts(attempts as u32).codes(codes);
    Ok(all.backoff(backoff.first, backoff.factor, backoff.longest))
}

/// A code by its name or number.
fn code(value: &Value) -> Parsed<Code> {
    let mut codes = (0..=16).map(Code::from_number);
    let found = match value {
        Value::String(name) => codes.find(|code| code.name() == name),
        Value::Number(number) => {
            codes.find(|code| number.as_u64() == Some(u64::from(code.number())))
        }
        _ => None,
    };
    match found {
        Some(code) => Ok(code),
        None => wrong("retryableStatusCodes", format!("no code {value}")),
    }
}

fn object<'a>(map: &'a Map<String, Value>, name: &str) -> Parsed<Option<&'a Map<String, Value>>> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => wrong(name, "expected an object"),
    }
}

fn list<'a>(map: &'a Map<String, Value>, name: &str) -> Parsed<&'a [Value]> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => wrong(name, "expected a list"),
    }
}

fn number(map: &Map<String, Value>, name: &str) -> Parsed<f64> {
    match map.get(name).and_then(Value::as_f64) {
        Some(number) => Ok(number),
        None => wrong(name, "expected a number"),
    }
}

fn duration(map: &Map<String, Value>, name: &str) -> Parsed<Duration> {
    match optional_duration(map, name)? {
        Some(duration) => Ok(duration),
        None => wrong(name, "expected a time such as \"0.1s\""),
    }
}

/// A time in seconds with the unit, such as `"1.5s"`.
fn optional_duration(map: &Map<String, Value>, name: &str) -> Parsed<Option<Duration>> {
    let value = match map.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let seconds = value.as_str().and_then(|text| text.strip_suffix('s')?.parse().ok());
    match seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(duration)) => Ok(Some(duration)),
        _ => wrong(name, "expected a time such as \"0.1s\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::MethodPath;

    fn of(retry: &Retry, path: &'static str) -> MethodConfig {
        retry.of(&MethodPath::new(path).expect("a path"))
    }

    #[test]
    fn methods_services_and_defaults_have_their_settings() {
        let text = r#"{
            "loadBalancingConfig": [{ "round_robin": {} }],
            "methodConfig": [
                { "name": [{}], "timeout": "30s" },
                { "name": [{ "service": "a.B" }, { "service": "a.C", "method": "" }], "waitForReady": true,
                  "hedgingPolicy": { "maxAttempts": 2, "hedgingDelay": "0.002s" } },
                { "name": [{ "service": "a.B", "method": "D" }],
                  "retryPolicy": { "maxAttempts": 9, "initialBackoff": "0.1s", "maxBackoff": "10s",
                    "backoffMultiplier": 2, "retryableStatusCodes": ["ABORTED", 14] } }
            ],
            "retryThrottling": { "maxTokens": 100, "tokenRatio": 0.5 }
        }"#;
        let retry = Retry::from_service_config(text).expect("a config");
        assert_eq!((retry.tokens.max, retry.tokens.ratio), (100.0, 0.5));
        assert!(retry.hedges());
        assert_eq!(of(&retry, "/x/Y").deadline, Some(Duration::from_secs(30)));
        for path in ["/a.B/X", "/a.C/D"] {
            let config = of(&retry, path);
            assert_eq!(config.hedge, Some(Hedge::after(Duration::from_millis(2))), "{path}");
            assert_eq!((config.waits_for_ready, config.deadline), (Some(true), None));
        }
        let policy = of(&retry, "/a.B/D").retry.expect("a policy");
        assert_eq!(policy.attempts, 5);
        assert_eq!(policy.backoff.longest, Duration::from_secs(10));
        assert!(policy.covers(Code::Aborted) && policy.covers(Code::Unavailable));
        assert!(!policy.covers(Code::Internal));
    }

    #[test]
    fn a_fault_is_named() {
        let policy = |members: &str| {
            format!(
                r#"{{ "methodConfig": [{{ "name": [{{}}], "retryPolicy": {{ {members} }} }}] }}"#
            )
        };
        let table = [
            ("[".to_owned(), "the text"),
            ("[]".to_owned(), "expected an object"),
            (r#"{ "methodConfig": 1 }"#.to_owned(), "methodConfig: expected a list"),
            (
                r#"{ "methodConfig": [{ "name": [{ "method": "A" }] }] }"#.to_owned(),
                "needs a service",
            ),
            (r#"{ "methodConfig": [{ "timeout": "1m" }] }"#.to_owned(), "timeout: expected a time"),
            (
                r#"{ "methodConfig": [{ "timeout": "-1s" }] }"#.to_owned(),
                "timeout: expected a time",
            ),
            (
                r#"{ "retryThrottling": { "maxTokens": 0, "tokenRatio": 1 } }"#.to_owned(),
                "0 < maxTokens",
            ),
            (policy(r#""maxAttempts": 1"#), "maxAttempts: expected a whole number from 2"),
            (policy(r#""maxAttempts": 2"#), "initialBackoff: expected a time"),
            (
                policy(
                    r#""maxAttempts": 2, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1,
                    "retryableStatusCodes": ["NO"]"#,
                ),
                "no code \"NO\"",
            ),
        ];
        for (text, fault) in table {
            let error = Retry::from_service_config(&text).expect_err(&text).to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
