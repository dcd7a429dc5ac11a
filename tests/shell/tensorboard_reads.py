"""Prints what TensorBoard itself finds in the folder of events_program, a line per item. The arguments are the folder and
the file in it."""
import io
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

folder, path = sys.argv[1:]
accumulator = EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0, "histograms": 0, "tensors": 0})
accumulator.Reload()
tags = accumulator.Tags()
print("tags:", *(f"{kind} {tags[kind]}" for kind in ("scalars", "histograms", "images", "tensors", "graph")))
scalars = accumulator.Scalars("loss/train")
print("steps:", [scalar.step for scalar in scalars] == list(range(1, 3001)))
print("values:", max(abs(scalar.value * scalar.step - 1) for scalar in scalars) < 1e-7)
print("times:", all(a.wall_time <= b.wall_time for a, b in zip(scalars, scalars[1:])))
(histogram,) = accumulator.Histograms("weights")
value = histogram.histogram_value
print("histogram:", histogram.step, value.min, value.max, value.num, value.sum, value.sum_squares)
print("buckets:", sum(value.bucket), len(value.bucket) == len(value.bucket_limit), sorted(value.bucket_limit) == value.bucket_limit)
(image,) = accumulator.Images("picture")
print("image:", image.step, image.width, image.height)
(text,) = accumulator.Tensors("note")
print("text:", text.step, text.tensor_proto.string_val[0].decode())
print("graph:", [(node.name, node.op, list(node.input)) for node in accumulator.Graph().node])
# The view of a running TensorBoard, which has converted the records of older writers to tensors.
plugins = {}
for event in EventFileLoader(path).Load():
    for item in event.summary.value:
        plugins.setdefault(item.tag, item.metadata.plugin_data.plugin_name)
print("plugins:", *(f"{tag} {name}" for tag, name in sorted(plugins.items())))
try:
    from PIL import Image
except ImportError:
    sys.exit()
picture = Image.open(io.BytesIO(image.encoded_image_string))
print("pixels:", picture.mode, *picture.size, *picture.tobytes())
