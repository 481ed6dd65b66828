#!/usr/bin/env bash
# Expected: `auto_pad` SAME_UPPER of a `ConvTranspose` gives an image of its size times the stride, whether
#   or not the file says all sizes.
# Happens: where a size is free, if only the batch's, OpenVINO leaves the padding out: 4 x 5 becomes 6 x 7 at
#   a stride of 1, with a border of one pixel, and 9 x 11 at 2. With all sizes fixed it is right, so that a
#   test of one image shows nothing.
# Versions: openvino 2026.4.1 (ONNX Runtime 1.31.1 is right)
# Source: onnx's operator ConvTranspose-11, `auto_pad`
# Guess: missed ("right, or refused where it cannot know the size")
. "$(dirname "$0")/lib.sh"
engines
python <<'PY'
x, w = (np.random.default_rng(0).standard_normal(size).astype(np.float32) for size in ((1, 1, 4, 5), (1, 1, 3, 3)))
seen = []
for stride in 1, 2:
    for sizes in ("batch", "h", "w"), ("batch", 4, 5), (1, 4, 5):
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[stride] * 2)
        model = graph([node], [("x", 1, [sizes[0], 1, *sizes[1:]])], [("y", 1, None)], {"w": w}, 17)
        right, got = ort(model, {"x": x})[0], ov(model, {"x": x})[0]
        seen.append((right.shape[2:], got.shape[2:], right.shape == got.shape and off(got, right) < 1e-5))
        print(f"stride {stride}, sizes {sizes}: ONNX Runtime {seen[-1][0]}, OpenVINO {seen[-1][1]}, the same: {seen[-1][2]}")
        if stride == 1 and sizes[1] == "h":
            print(f"  what OpenVINO has in the middle is ONNX Runtime's: {off(got[:, :, 1:-1, 1:-1], right) < 1e-5}")
raise SystemExit(seen != [((4, 5), (6, 7), False)] * 2 + [((4, 5), (4, 5), True)]
                 + [((8, 10), (9, 11), False)] * 2 + [((8, 10), (8, 10), True)])
PY
