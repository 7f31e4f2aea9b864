//! Makes calls of 100 bytes between two nodes of this process through shared memory: by the functions of C, or in Rust.
//!
//! `c_call c|rust CALLS` measures nothing. `cargo xtask c-call` counts its instructions outside the function that waits for the response,
//! which both ways share: the difference is the cost of the C interface.

use std::error::Error;
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::{env, thread};

use apus::{Address, Bytes, CallError, CallOptions, Client, Config, Node};
use apus_capi::*;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [way, calls] = &arguments[..] else { return Err("c_call c|rust CALLS".into()) };
    let calls: u32 = calls.parse()?;
    let mut config = Config::new();
    config.apply_environment()?.listen("127.0.0.1:0".parse()?);
    let server = Node::start(&config)?;
    let port = server.bind(4000)?;
    let to = Address::new(server.local_addr(), 4000);
    let serving = port.clone();
    let thread = thread::spawn(move || {
        serving.serve(|mut request| {
            let body = request.take_body();
            let _ = request.reply(body); // The client may have gone.
        });
    });
    match way.as_str() {
        "c" => by_c(to, calls)?,
        "rust" => by_rust(&config, to, calls)?,
        other => return Err(format!("{other}: expected c or rust").into()),
    }
    port.shutdown();
    thread.join().map_err(|_| "the server has panicked".into())
}

fn by_c(to: Address, calls: u32) -> Result<(), Box<dyn Error>> {
    // Not called directly: a program in C calls functions of a library.
    let (call, free) = (black_box(apus_call as Call), black_box(apus_message_free as Free));
    let (mut node, mut client) = (null_mut(), null_mut());
    let mut address = apus_address {
        size: size_of::<apus_address>() as u32,
        family: APUS_IPV4,
        port: to.port,
        udp_port: to.host.port(),
        reserved: 0,
        scope_id: 0,
        ip: [0; 16],
    };
    address.ip[..4].copy_from_slice(&[127, 0, 0, 1]);
    // SAFETY: all pointers are those of live handles and locals.
    unsafe {
        let config = apus_config_new();
        apus_config_apply_environment(config);
        apus_config_set(config, c"listen".as_ptr(), c"127.0.0.1:0".as_ptr());
        let started = apus_node_start(config, &raw mut node);
        apus_config_free(config);
        let opened = apus_client_open(node, &raw mut client);
        let connected = apus_connect(client, &raw const address, APUS_FOREVER);
        if (started, opened, connected) != (0, 0, 0) {
            return Err("a node does not start".into());
        }
        for _ in 0..calls {
            let mut response = null_mut();
            let (to, body) = (&raw const address, BODY.as_ptr().cast());
            if call(client, to, body, BODY.len(), null(), &raw mut response) != 0 {
                return Err("a call has failed".into());
            }
            let mut length = 0;
            assert!(
                !apus_message_data(response, &raw mut length).is_null() && length == BODY.len()
            );
            free(response);
        }
        apus_client_free(client);
        apus_node_free(node);
    }
    Ok(())
}

type Call = unsafe extern "C" fn(
    *mut apus_client,
    *const apus_address,
    *const std::ffi::c_void,
    usize,
    *const apus_call_options,
    *mut *mut apus_message,
) -> i32;
type Free = unsafe extern "C" fn(*mut apus_message);

fn by_rust(config: &Config, to: Address, calls: u32) -> Result<(), Box<dyn Error>> {
    let node = Node::start(config)?;
    let client = node.client()?;
    client.connect(to).wait()?;
    let call = black_box(rust_call as RustCall);
    for _ in 0..calls {
        let response = call(&client, to, &BODY, CallOptions::new())?;
        assert_eq!(response.len(), BODY.len());
        black_box(rust_free as fn(Bytes))(response);
    }
    Ok(())
}

type RustCall = fn(&Client, Address, &[u8], CallOptions) -> Result<Bytes, CallError>;

/// The call of a program in Rust whose body is its own.
#[inline(never)]
fn rust_call(
    client: &Client,
    to: Address,
    body: &[u8],
    options: CallOptions,
) -> Result<Bytes, CallError> {
    rust_wait(client, to, Bytes::copy_from_slice(body), options)
}

/// Its instructions are not counted.
#[inline(never)]
fn rust_wait(
    client: &Client,
    to: Address,
    body: Bytes,
    options: CallOptions,
) -> Result<Bytes, CallError> {
    client.call(to, body).options(options).wait()
}

#[inline(never)]
fn rust_free(response: Bytes) {
    drop(response);
}

static BODY: [u8; 100] = [7; 100];
