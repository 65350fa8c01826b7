//! The placement of labels near points, so that none overlaps another label or a point.

/// A rectangle of pixels: left, top, width, height.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Area {
    pub x: i32,
    pub y: i32,
    pub wide: i32,
    pub high: i32,
}

impl Area {
    fn overlaps(&self, other: &Area) -> bool {
        self.x < other.x + other.wide
            && other.x < self.x + self.wide
            && self.y < other.y + other.high
            && other.y < self.y + self.high
    }

    fn holds(&self, other: &Area) -> bool {
        self.x <= other.x
            && self.y <= other.y
            && other.x + other.wide <= self.x + self.wide
            && other.y + other.high <= self.y + self.high
    }
}

/// Half the side of the square that a point takes.
const POINT: i32 = 4;
/// The pixels between two candidate distances.
const STEP: i32 = 7;
/// The number of candidate distances.
const STEPS: i32 = 60;

/// The candidate directions, in halves: first the corners, and of these first the upper right.
const SIDES: [(i32, i32); 16] = [
    (2, -2),
    (2, 2),
    (-2, -2),
    (-2, 2),
    (2, 0),
    (0, -2),
    (-2, 0),
    (0, 2),
    (2, -1),
    (2, 1),
    (-2, -1),
    (-2, 1),
    (1, -2),
    (-1, -2),
    (1, 2),
    (-1, 2),
];

/// An area for the label of each point, of the given size and within `inside`: the nearest free one, in the order of
/// the points. If none is free, the label lies next to its point and may overlap.
pub fn place_beside(points: &[(i32, i32)], sizes: &[(i32, i32)], inside: Area) -> Vec<Area> {
    let square = |(x, y): &(i32, i32)| Area {
        x: x - POINT,
        y: y - POINT,
        wide: 2 * POINT,
        high: 2 * POINT,
    };
    let mut occupied: Vec<Area> = points.iter().map(square).collect();
    let count = occupied.len();
    for ((x, y), (wide, high)) in points.iter().zip(sizes) {
        // By halves of the distance along each axis, so that sides lie on a square around the point.
        let label_area = |distance: i32, (dx, dy): (i32, i32)| Area {
            x: x + dx * distance / 2 - (2 - dx) * wide / 4,
            y: y + dy * distance / 2 - (2 - dy) * high / 4,
            wide: *wide,
            high: *high,
        };
        let mut rings =
            (0..STEPS).flat_map(|ring| SIDES.map(|side| label_area(POINT + 1 + ring * STEP, side)));
        let free = |area: &Area| inside.holds(area) && !occupied.iter().any(|t| t.overlaps(area));
        let position = rings.find(free);
        occupied.push(position.unwrap_or_else(|| label_area(POINT + 1, SIDES[0])));
    }
    occupied.split_off(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSIDE: Area = Area {
        x: 80,
        y: 10,
        wide: 800,
        high: 400,
    };

    #[test]
    fn labels_lie_over_nothing_however_close_the_points_are() {
        let clusters: [fn(i32) -> (i32, i32); 4] = [
            |i| (90 + i * 19, 20 + i * 9),
            |i| (300 + i % 7 * 3, 200 + i / 7 * 2),
            |_| (82, 12),
            |i| (879 - i % 2, 409),
        ];
        for at in clusters {
            let points: Vec<(i32, i32)> = (0..40).map(at).collect();
            let sizes: Vec<(i32, i32)> =
                (0..40).map(|i| (if i < 9 { 8 } else { 15 }, 12)).collect();
            let areas = place_beside(&points, &sizes, INSIDE);
            assert_eq!(areas.len(), 40);
            for (i, a) in areas.iter().enumerate() {
                assert!(INSIDE.holds(a), "{i}: {a:?}");
                assert_eq!((a.wide, a.high), sizes[i]);
                assert!(areas[..i].iter().all(|b| !a.overlaps(b)), "{i}: {a:?}");
                let covers = |(x, y): &(i32, i32)| {
                    let point = Area {
                        x: *x,
                        y: *y,
                        wide: 1,
                        high: 1,
                    };
                    a.overlaps(&point)
                };
                assert!(!points.iter().any(covers), "{i}: {a:?}");
            }
        }
    }

    #[test]
    fn a_label_alone_is_beside_its_point() {
        let areas = place_beside(&[(200, 100)], &[(15, 12)], INSIDE);
        let expected = Area {
            x: 205,
            y: 83,
            wide: 15,
            high: 12,
        };
        assert_eq!(areas, [expected]);
    }
}
