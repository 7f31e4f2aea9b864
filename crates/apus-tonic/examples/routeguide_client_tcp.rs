//! A client of the service `routeguide.RouteGuide`.

#[allow(warnings, reason = "generated")]
mod routeguide {
    include!("../proto/generated/routeguide.rs");
}

use routeguide::route_guide_client::RouteGuideClient;
use routeguide::{Area, Point, RouteNote};
use tonic::Request;

fn point(latitude: i32, longitude: i32) -> Point {
    Point { latitude, longitude }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut client = RouteGuideClient::connect("http://[::1]:50052").await?;

    println!("*** ONE PLACE ***");
    let feature = client.get_feature(point(2, 5)).await?;
    println!("{:?}", feature.into_inner());

    println!("*** PLACES IN AN AREA ***");
    let area = Area { low: Some(point(0, 0)), high: Some(point(5, 5)) };
    let mut features = client.list_features(Request::new(area)).await?.into_inner();
    while let Some(feature) = features.message().await? {
        println!("{feature:?}");
    }

    println!("*** A ROUTE ***");
    let route = tokio_stream::iter((0..10).map(|step| point(step, step)));
    println!("{:?}", client.record_route(route).await?.into_inner());

    println!("*** NOTES ***");
    let note =
        |step| RouteNote { location: Some(point(step % 2, 0)), message: format!("at {step}") };
    let mut notes = client.route_chat(tokio_stream::iter((0..4).map(note))).await?.into_inner();
    while let Some(note) = notes.message().await? {
        println!("{note:?}");
    }
    Ok(())
}
