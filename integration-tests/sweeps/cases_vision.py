"""timm's families and torchvision's models, small, with random weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import sweep_vision
import torch
from model_judge import Case

#: timm families beyond one per module, which ``sweep_vision`` picks.
NAMED = (
    "resnet18", "resnext26ts", "seresnext26d_32x4d", "regnetx_002", "regnety_002", "efficientnet_b0", "efficientnetv2_rw_t",
    "mobilenetv3_small_050", "mobilenetv4_conv_small", "mnasnet_small", "densenet121", "vgg11_bn", "inception_v3",
    "xception41", "nf_regnet_b0", "dm_nfnet_f0", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224",
    "swinv2_cr_tiny_224", "maxvit_nano_rw_256", "coat_tiny", "coatnet_nano_rw_224", "cait_xxs24_224", "pit_ti_224",
    "beit_base_patch16_224", "mixer_s32_224", "convmixer_768_32", "convnext_atto", "convnextv2_atto", "poolformer_s12",
    "levit_128s", "edgenext_xx_small", "mobilevit_xxs", "mobilevitv2_050", "ghostnet_050", "hrnet_w18_small", "dla34",
    "repvgg_a0", "repghostnet_050", "resmlp_12_224", "gmlp_ti16_224", "crossvit_tiny_240", "xcit_nano_12_p16_224",
    "twins_pcpvt_small", "visformer_tiny", "volo_d1_224", "tnt_s_patch16_224", "selecsls42b", "skresnet18", "res2net50_14w_8s",
    "rexnet_100", "cspresnet50", "darknet53", "eca_botnext26ts_256", "halonet26t", "lambda_resnet26t", "fastvit_t8",
    "efficientformer_l1", "efficientformerv2_s0", "efficientvit_m0", "tiny_vit_5m_224", "nextvit_small", "davit_tiny",
    "focalnet_tiny_srf", "hiera_tiny_224", "inception_next_atto", "caformer_s18", "vovnet39a", "bat_resnext26ts", "senet154",
    "resnest14d", "tresnet_m", "hardcorenas_a", "naflexvit_base_patch16_gap", "eva02_tiny_patch14_224", "mvitv2_tiny",
    "nasnetalarge", "pnasnet5large", "sknet", "vit_tiny_r_s16_p8_224", "convit_tiny", "ese_vovnet19b_dw", "gernet_s",
)  # fmt: skip


#: Models with more parameters are not trained here: float64, noise and three steps take minutes.
MOST_TRAINED = 15_000_000


def vision_case(model: Any, inputs: Callable[[int], Any], **more: Any) -> Case:
    count = sum(p.numel() for p in model.parameters())
    return Case(model, inputs, train=count < MOST_TRAINED, **more)


def timm_case(name: str) -> Case:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=10)
    channels, side, _ = model.default_cfg["input_size"]
    fixed = model.default_cfg.get("fixed_input_size")
    if not fixed:
        side = min(side, max(model.default_cfg.get("min_input_size", (0, 64, 64))[1], 64))
    return vision_case(
        model, lambda size: (torch.randn(2 + size, channels, side + (32 * size if not fixed else 0), side),)
    )


def module_case(make: Any) -> Case:
    _, model, (example,) = make()
    return vision_case(model, lambda size: (torch.randn(2 + size, *example.shape[1:]),))


def segmentation(name: str) -> Case:
    from torchvision import models

    model = models.get_model(name, weights=None, weights_backbone=None, num_classes=4)
    return vision_case(model, lambda size: (torch.randn(2 + size, 3, 64, 64 + 32 * size),))


def nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """Greedy suppression, where torchvision's own kernel does not load."""
    keep: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        if all(float(box_iou(boxes[i : i + 1], boxes[k : k + 1])) <= threshold for k in keep):
            keep.append(i)
    return torch.tensor(keep, dtype=torch.int64)


def box_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from torchvision.ops import box_iou

    return box_iou(a, b)


def provide_nms() -> None:
    """Give ``torchvision::nms`` a kernel where it has none; and ``roi_align`` as Python, not through torch.compile."""
    from torchvision.ops import boxes

    if torch._C._dispatch_has_kernel_for_dispatch_key("torchvision::nms", "CPU"):
        return
    boxes._assert_has_ops = lambda: None
    pooling = sys.modules["torchvision.ops.roi_align"]
    pooling._roi_align = getattr(pooling._roi_align, "__wrapped__", pooling._roi_align)
    _LIBRARY.append(torch.library.Library("torchvision", "IMPL"))
    _LIBRARY[-1].impl("nms", nms, "CPU")


_LIBRARY: list[torch.library.Library] = []


class Detector(torch.nn.Module):
    """Images as tensors rather than a list, targets made from the size."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Any, boxes: Any, labels: Any) -> Any:
        targets = [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=True)]
        return self.model(list(images), targets if self.training else None)


def detection(name: str) -> Case:
    from torchvision import models

    provide_nms()
    model = Detector(models.get_model(name, weights=None, weights_backbone=None, num_classes=4))
    if hasattr(model.model, "transform"):
        model.model.transform.min_size, model.model.transform.max_size = (96,), 128

    def inputs(size: int) -> tuple[Any, ...]:
        corner = torch.rand(2, 3, 2) * 30
        return (
            torch.rand(2, 3, 96, 96 + 32 * size), torch.cat([corner, corner + 20], -1), torch.randint(1, 4, (2, 3)),
        )  # fmt: skip

    options = {"options": {"fallback_random": True}}  # boxes are drawn for the losses
    return vision_case(model, inputs, loss=lambda losses: sum(losses.values()), options=options)


def video(name: str) -> Case:
    from torchvision import models

    model = models.get_model(name, weights=None, num_classes=5)
    side = 56 if name.startswith(("r3d", "mc3", "r2plus1d", "s3d")) else 224 if name.startswith("mvit") else 64
    return vision_case(
        model, lambda size: (torch.randn(1 + size, 3, 16 if not name.startswith("swin") else 4, side, side),)
    )


def raft() -> Case:
    from torchvision.models.optical_flow import raft_small

    model = raft_small(weights=None)
    return vision_case(model, lambda size: (torch.rand(1 + size, 3, 128, 128), torch.rand(1 + size, 3, 128, 128)))


def cases() -> dict[str, Callable[[], Case]]:
    """All of them by name."""
    found: dict[str, Callable[[], Case]] = {f"timm/{name}": lambda name=name: timm_case(name) for name in NAMED}
    for name, make in sweep_vision.timm_cases().items():
        found[f"timm/module/{name.rpartition('/')[2]}"] = lambda make=make: module_case(make)
    for name, make in sweep_vision.torchvision_cases().items():
        kind, family = name.split("/")[1:]
        if kind == "models":
            found[f"tv/classification/{family}"] = lambda make=make: module_case(make)
    for name in ("deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large"):
        found[f"tv/segmentation/{name}"] = lambda name=name: segmentation(name)
    for name in ("fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn", "maskrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn"):  # fmt: skip
        found[f"tv/detection/{name}"] = lambda name=name: detection(name)
    for name in ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t"):
        found[f"tv/video/{name}"] = lambda name=name: video(name)
    found["tv/flow/raft_small"] = raft
    return found
