//! A server of the service `routeguide.RouteGuide`, which has a method of each of gRPC's four forms.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

#[allow(warnings, reason = "generated")]
mod routeguide {
    include!("../proto/generated/routeguide.rs");
}

use routeguide::route_guide_server::{RouteGuide, RouteGuideServer};
use routeguide::{Area, Feature, Point, RouteNote, RouteSummary};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

struct MyRouteGuide {
    features: Arc<Vec<Feature>>,
}

fn point(latitude: i32, longitude: i32) -> Point {
    Point { latitude, longitude }
}

fn is_in(area: &Area, at: Option<Point>) -> bool {
    let (low, high) = (area.low.unwrap_or_default(), area.high.unwrap_or_default());
    at.is_some_and(|at| {
        (low.latitude..=high.latitude).contains(&at.latitude)
            && (low.longitude..=high.longitude).contains(&at.longitude)
    })
}

#[tonic::async_trait]
impl RouteGuide for MyRouteGuide {
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        let at = Some(request.into_inner());
        let found = self.features.iter().find(|feature| feature.location == at).cloned();
        Ok(Response::new(found.unwrap_or(Feature { name: String::new(), location: at })))
    }

    type ListFeaturesStream = ReceiverStream<Result<Feature, Status>>;

    async fn list_features(
        &self,
        request: Request<Area>,
    ) -> Result<Response<Self::ListFeaturesStream>, Status> {
        let (sender, receiver) = mpsc::channel(4);
        let (features, area) = (Arc::clone(&self.features), request.into_inner());
        tokio::spawn(async move {
            for feature in features.iter().filter(|feature| is_in(&area, feature.location)) {
                if sender.send(Ok(feature.clone())).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        let (mut points, mut summary) = (request.into_inner(), RouteSummary::default());
        while let Some(point) = points.next().await {
            let at = Some(point?);
            summary.point_count += 1;
            let is_known = self.features.iter().any(|feature| feature.location == at);
            summary.feature_count += i32::from(is_known);
        }
        Ok(Response::new(summary))
    }

    type RouteChatStream = Pin<Box<dyn Stream<Item = Result<RouteNote, Status>> + Send>>;

    async fn route_chat(
        &self,
        request: Request<Streaming<RouteNote>>,
    ) -> Result<Response<Self::RouteChatStream>, Status> {
        let (mut notes, mut earlier) = (request.into_inner(), HashMap::<_, Vec<RouteNote>>::new());
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Some(Ok(note)) = notes.next().await {
                let at = note.location.unwrap_or_default();
                let here = earlier.entry((at.latitude, at.longitude)).or_default();
                here.push(note);
                for note in here.iter() {
                    if sender.send(Ok(note.clone())).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let places = [("Gate", 1, 1), ("Bridge", 2, 5), ("Mill", 7, 3)];
    let feature = |(name, latitude, longitude): (&str, i32, i32)| Feature {
        name: name.to_owned(),
        location: Some(point(latitude, longitude)),
    };
    let features = Arc::new(places.map(feature).to_vec());
    let guide = RouteGuideServer::new(MyRouteGuide { features });
    tonic::transport::Server::builder().add_service(guide).serve("[::1]:50052".parse()?).await?;
    Ok(())
}
