"""The operators of tensor programs, as templates of statements.

``{a}`` and ``{b}`` are tensors of any type, ``{f}`` and ``{g}`` real floating-point ones, ``{i}`` an integer one, ``{m}`` a
bool one; ``{d}`` is a dimension, ``{k}`` a number, ``{z}`` one that is not zero. Statements that eager refuses are left out
while a program is written, so templates need not fit every tensor.
"""

from __future__ import annotations

__all__ = ["GROUPS"]

_UNARY = """
{a}.abs()
-{a}
{a}.relu()
{f}.sin()
{f}.cos()
{f}.tan()
{f}.sigmoid()
{f}.tanh()
{f}.exp()
{f}.exp2()
{f}.expm1()
{f}.abs().log()
{f}.abs().log1p()
{f}.abs().add({z}).log2()
{f}.abs().log10()
{f}.abs().sqrt()
{f}.abs().add(0.5).rsqrt()
{f}.reciprocal()
{f}.erf()
{f}.erfc()
{f}.clamp(-0.9, 0.9).erfinv()
{f}.clamp(-0.9, 0.9).asin()
{f}.clamp(-0.9, 0.9).acos()
{f}.atan()
{f}.sinh()
{f}.cosh()
{f}.asinh()
{f}.abs().add(1.5).acosh()
{f}.clamp(-0.9, 0.9).atanh()
{f}.abs().add(0.5).lgamma()
{f}.abs().add(0.5).digamma()
torch.sinc({f})
torch.logit({f}.sigmoid(), 0.01)
{a}.to(torch.float16)
{a}.to(torch.bfloat16)
{a}.to(torch.int32)
{a}.to(torch.uint8)
{a}.to(torch.int8)
{a}.to(torch.int64)
{a}.double()
{a}.float()
{a}.bool()
{a}.half() * 1.5
{a}.logical_not()
{a}.floor()
{a}.ceil()
{a}.trunc()
{a}.round()
{f}.round(decimals=1)
{a}.frac()
{a}.sign()
{f}.sgn()
{a}.square()
{a}.neg()
{a}.positive()
{a}.isnan()
{a}.isinf()
{a}.isfinite()
{a}.signbit()
{f}.deg2rad()
~{i}
~{m}
{a}.clamp(-1, 2)
{a}.clamp(min={k})
{a}.clamp_max({k})
torch.clip({f}, {k}, 3)
torch.nan_to_num({f}, nan=1.0)
torch.nan_to_num({a} / 0)
{a} + {k}
{a} - {k}
{k} - {a}
{a} * {k}
{k} * {a}
{a} / {z}
{z} / ({f}.abs() + 1)
{a} // {z}
{a} % {z}
{a} ** 2
{f}.abs() ** 0.5
{f}.abs().add(0.1) ** -1.5
2.0 ** {f}
{f}.pow(3)
torch.pow(2, {i}.clamp(0, 4))
{i} << 1
{i} >> 1
{i} & 3
{i} | 4
{i} ^ 1
{a} > {k}
{a} <= {k}
{a} == {k}
{a} != {k}
torch.isin({i}, torch.tensor([1, 2], device={i}.device))
F.gelu({f})
F.gelu({f}, approximate='tanh')
F.silu({f})
F.mish({f})
F.softplus({f})
F.softplus({f}, 2.0, 1.0)
F.elu({f})
F.selu({f})
F.celu({f}, 0.5)
F.leaky_relu({f}, 0.2)
F.hardtanh({f})
F.hardswish({f})
F.hardsigmoid({f})
F.hardshrink({f})
F.softshrink({f})
F.tanhshrink({f})
F.softsign({f})
F.logsigmoid({f})
F.relu6({f})
F.threshold({f}, 0.1, -1.0)
F.glu({f}, {d})
F.prelu({f}, ramp({f}, 1))
torch.where({a} > 0, {a}, 0)
torch.where({m}, {a}, {k})
{a}.masked_fill({m}, {k})
{a}.type_as({b})
{a}.heaviside({b})
torch.special.entr({f}.abs())
torch.special.expit({f})
torch.special.i0({f})
torch.special.log_ndtr({f})
torch.special.ndtr({f})
torch.special.xlog1py({f}, {g}.abs())
torch.polygamma(1, {f}.abs() + 1)
torch.bucketize({f}, torch.tensor([-1.0, 0.0, 1.0], device={f}.device, dtype={f}.dtype))
torch.frexp({f})[0]
torch.view_as_real(torch.complex({f}, {f}.sin()))
torch.complex({f}, {f}.cos()).abs()
torch.polar({f}.abs(), {f}).real
({f} + 1j).angle()
({f} * (1 + 2j)).conj().imag
"""
_BINARY = """
{a} + {b}
{a} - {b}
{a} * {b}
{a} / {b}
{f} / ({g}.abs() + 0.5)
torch.maximum({a}, {b})
torch.minimum({a}, {b})
torch.fmax({f}, {g})
torch.fmin({f}, {g})
{a} > {b}
{a} >= {b}
{a} == {b}
{a} != {b}
{m} & {m}
{m} | {m}
{i} ^ {i}
{i} & {i}
torch.logical_xor({a}, {b})
torch.logical_and({a}, {b})
torch.where({m}, {a}, {b})
torch.where({a} > {b}, {a}, {b})
torch.add({a}, {b}, alpha=2)
torch.sub({a}, {b}, alpha=3)
torch.rsub({a}, {b})
torch.atan2({f}, {g})
torch.hypot({f}, {g})
torch.copysign({f}, {g})
torch.fmod({f}, {g}.abs() + 0.5)
torch.remainder({f}, {g}.abs() + 0.5)
torch.remainder({i}, {z})
torch.fmod({i}, {z})
torch.floor_divide({f}, {g}.abs() + 0.5)
torch.div({a}, {z}, rounding_mode='trunc')
torch.div({i}, {z}, rounding_mode='floor')
torch.div({f}, {g}.abs() + 0.5, rounding_mode='floor')
torch.lerp({f}, {g}, 0.3)
torch.lerp({f}, {f}.flip(-1), {f}.sigmoid())
torch.addcmul({f}, {g}, {g}, value=0.5)
torch.addcdiv({f}, {f}, {f}.abs() + 1, value=2)
torch.xlogy({f}, {g}.abs() + 0.1)
torch.logaddexp({f}, {g})
torch.logaddexp2({f}, {g})
torch.ldexp({f}, {i})
torch.nextafter({f}, {g})
torch.isclose({f}, {g})
torch.gcd({i}, {i})
torch.lcm({i}, {i}.clamp(1, 5))
{f}.abs().add(0.1).pow({g})
torch.cat([{a}, {b}], {d})
torch.cat([{a}, {a}, {a}[:0]], 0)
torch.stack([{a}, {b}], {d})
torch.hstack([{a}, {b}])
torch.vstack([{a}, {a}])
torch.outer({f}.flatten(), {g}.flatten())
torch.cross({f}.reshape(-1)[:3], {g}.reshape(-1)[:3], dim=0)
torch.cdist({f}, {f} + 1)
torch.kron({f}, ramp({f}, 2))
torch.block_diag({f}, {f})
torch.broadcast_tensors({a}, {b})[1] * 1
torch.meshgrid({f}.flatten(), {f}.flatten()[:2], indexing='ij')[0]
torch.equal({a}, {b}) * {a}
F.mse_loss({f}, {f} * 0.5)
F.l1_loss({f}, {g}, reduction='none')
F.smooth_l1_loss({f}, {f}.cos())
F.huber_loss({f}, {f} * 2, delta=0.5)
F.binary_cross_entropy_with_logits({f}, {f}.sigmoid())
F.kl_div({f}.log_softmax(-1), {f}.softmax(-1), reduction='sum')
F.cosine_similarity({f}, {f} + 1, dim={d})
F.pairwise_distance({f}, {g})
F.margin_ranking_loss({f}, {f} * 0.5, {f}.sign())
F.soft_margin_loss({f}, {f}.sign())
F.poisson_nll_loss({f}, {f}.abs())
F.gaussian_nll_loss({f}, {f} * 0.5, {f}.abs() + 1)
"""
_PRODUCT = """
{f} @ {f}.mT
{f} @ ramp({f}, {f}.shape[-1], 3)
torch.matmul({f}, ramp({f}, {f}.shape[-1]))
torch.matmul({f}.unsqueeze(0), ramp({f}, 2, {f}.shape[-1], 4))
torch.einsum('...i,...j->...ij', {f}, {f})
torch.einsum('...i,...i->...', {f}, {g})
torch.einsum('ij,kj->ik', {f}, {f})
torch.bmm({f}.reshape(1, -1, {f}.shape[-1]), ramp({f}, 1, {f}.shape[-1], 2))
torch.mm({f}.reshape(-1, {f}.shape[-1]), ramp({f}, {f}.shape[-1], 5)).relu()
torch.addmm(ramp({f}, 3), {f}.reshape(-1, {f}.shape[-1]), ramp({f}, {f}.shape[-1], 3), beta=0.5)
torch.baddbmm(ramp({f}, 1, 1, 2), {f}.reshape(1, -1, {f}.shape[-1]), ramp({f}, 1, {f}.shape[-1], 2))
torch.mv({f}.reshape(-1, {f}.shape[-1]), ramp({f}, {f}.shape[-1]))
torch.dot({f}.flatten(), {f}.flatten())
torch.tensordot({f}, {f}, dims=([0], [0]))
torch.linalg.vector_norm({f}, 3, dim={d})
torch.linalg.multi_dot([{f}, {f}.mT, {f}])
F.linear({f}, ramp({f}, 4, {f}.shape[-1]), ramp({f}, 4))
F.linear({f}, ramp({f}, 2, {f}.shape[-1])).tanh()
F.bilinear({f}[..., :40], {f}[..., :40], ramp({f}, 2, {f}[..., :40].shape[-1], {f}[..., :40].shape[-1]))
F.conv1d({f}.reshape(1, 1, -1), ramp({f}, 2, 1, 2), padding=1)
F.conv1d({f}.reshape(1, 1, -1), ramp({f}, 2, 1, 3), ramp({f}, 2), stride=2, padding=2, dilation=2)
F.conv2d({f}.reshape(1, 1, -1, {f}.shape[-1]), ramp({f}, 3, 1, 2, 2), padding=1)
F.conv2d({f}.reshape(1, 1, -1, {f}.shape[-1]).repeat(2, 4, 1, 1), ramp({f}, 4, 2, 3, 3), groups=2, padding='same')
F.conv_transpose1d({f}.reshape(1, 1, -1), ramp({f}, 1, 2, 3), stride=2)
F.conv_transpose2d({f}.reshape(1, 1, -1, {f}.shape[-1]), ramp({f}, 1, 2, 2, 2), padding=1)
F.layer_norm({f}, {f}.shape[-1:])
F.layer_norm({f}, {f}.shape[-1:], ramp({f}, {f}.shape[-1]), ramp({f}, {f}.shape[-1]), 0.1)
F.rms_norm({f}, {f}.shape[-1:])
F.group_norm({f}.reshape(1, 2, -1), 2)
F.instance_norm({f}.reshape(1, 1, -1))
F.batch_norm({f}.reshape(-1, {f}.shape[-1]), None, None, training=True)
F.batch_norm({f}.reshape(-1, {f}.shape[-1]), ramp({f}, {f}.shape[-1]), ramp({f}, {f}.shape[-1]).abs() + 1)
F.local_response_norm({f}.reshape(1, 2, -1), 2)
F.normalize({f}, dim={d})
F.scaled_dot_product_attention({f}.reshape(1, 1, -1, {f}.shape[-1])[:, :, :512], {f}.reshape(1, 1, -1, {f}.shape[-1])[:, :, :512], {f}.reshape(1, 1, -1, {f}.shape[-1])[:, :, :512])
F.scaled_dot_product_attention({f}.reshape(1, 1, -1, {f}.shape[-1])[:, :, :512], {f}.reshape(1, 1, -1, {f}.shape[-1])[:, :, :512], {f}.reshape(1, 1, -1, {f}.shape[-1])[:, :, :512], is_causal=True)
F.scaled_dot_product_attention({f}.reshape(1, 1, -1, 2)[:, :, :512], {f}.reshape(1, 1, -1, 2)[:, :, :512], {f}.reshape(1, 1, -1, 2)[:, :, :512], attn_mask=({f}.reshape(1, -1, 2)[:, :512, 0] > -9), scale=0.5)
F.scaled_dot_product_attention({f}[None, None], {f}[None, None], {g}[None, None])
F.scaled_dot_product_attention({f}[None, None], {f}[None, None, :2], {f}[None, None, :2], is_causal=True)
F.scaled_dot_product_attention(ramp({g}, 1, 2, {g}.shape[-2], 8), ramp({g}, 1, 2, {g}.shape[-1], 8), ramp({g}, 1, 2, {g}.shape[-1], 8), attn_mask={g})
F.scaled_dot_product_attention(ramp({g}, 3, {g}.shape[0], 4), ramp({g}, 3, {g}.shape[-1], 4), ramp({g}, 3, {g}.shape[-1], 4), attn_mask={g} > -9)
F.embedding({i}.clamp(0, 4), ramp({f}, 5, 3))
F.embedding_bag({i}.reshape(1, -1).clamp(0, 4), ramp({f}, 5, 3), mode='mean')
F.one_hot({i}.clamp(0, 4).long(), 5)
F.cross_entropy({f}.reshape(-1, {f}.shape[-1]), torch.zeros({f}.reshape(-1, {f}.shape[-1]).shape[0], dtype=torch.int64, device={f}.device))
F.nll_loss({f}.reshape(-1, {f}.shape[-1]).log_softmax(1), torch.zeros({f}.reshape(-1, {f}.shape[-1]).shape[0], dtype=torch.int64, device={f}.device), reduction='none')
F.max_pool1d({f}.reshape(1, 1, -1), 2)
F.max_pool2d({f}.reshape(1, 1, -1, {f}.shape[-1]), 2, stride=1, padding=1)
F.avg_pool1d({f}.reshape(1, 1, -1), 2, padding=1)
F.avg_pool2d({f}.reshape(1, 1, -1, {f}.shape[-1]), 2, ceil_mode=True, count_include_pad=False)
F.adaptive_avg_pool1d({f}.reshape(1, 1, -1), 3)
F.adaptive_avg_pool2d({f}.reshape(1, 1, -1, {f}.shape[-1]), (1, 2))
F.adaptive_max_pool1d({f}.reshape(1, 1, -1), 2)
F.lp_pool1d({f}.abs().reshape(1, 1, -1), 2, 2)
F.interpolate({f}.reshape(1, 1, -1), scale_factor=2)
F.interpolate({f}.reshape(1, 1, -1), size=5, mode='linear')
F.interpolate({f}.reshape(1, 1, -1, {f}.shape[-1]), size=(3, 4), mode='bilinear', align_corners=True)
F.interpolate({f}.reshape(1, 1, -1, {f}.shape[-1]), scale_factor=1.5, mode='nearest-exact')
F.pixel_shuffle({f}.reshape(1, 4, -1, 1), 2)
F.unfold({f}.reshape(1, 1, -1, {f}.shape[-1]), 2, padding=1)
F.fold({f}.reshape(1, 4, -1), (2, {f}.numel() // 4 + 1), 2)
F.grid_sample({f}.reshape(1, 1, -1, {f}.shape[-1]), ramp({f}, 1, 2, 2, 2), align_corners=False)
F.pad({f}.reshape(1, 1, -1), (1, 2), mode='reflect')
F.pad({f}.reshape(1, 1, -1), (1, 2), mode='replicate')
F.pad({f}.reshape(1, 1, -1), (1, 1), mode='circular')
torch.fft.rfft({f}, dim=-1).abs()
"""
_REDUCTION = """
{a}.sum()
{a}.sum({d})
{a}.sum({d}, keepdim=True)
{a}.sum((0, -1))
{a}.sum({d}, dtype=torch.float64)
{f}.mean()
{f}.mean({d})
{f}.mean((0, -1), keepdim=True)
{a}.amax({d})
{a}.amin(({d},))
{a}.aminmax(dim={d}).max
{a}.max()
{a}.max({d}).values
{a}.min({d})[1]
{a}.prod()
{f}.prod({d})
{f}.var()
{f}.var({d}, unbiased=False)
{f}.std({d}, keepdim=True)
torch.var_mean({f}, {d})[1]
torch.std_mean({f}, {d}, correction=0)[0]
{a}.any()
{a}.any({d})
{a}.all({d})
{a}.argmax()
{a}.argmax({d})
{a}.argmin({d}, keepdim=True)
{a}.cumsum({d})
{f}.cumprod({d})
{a}.cummax({d})[0]
{a}.cummin({d}).values
{f}.logcumsumexp({d})
{f}.softmax({d})
{f}.log_softmax({d})
{f}.softmax(-1, dtype=torch.float32)
F.softmin({f}, {d})
{f}.logsumexp({d})
{f}.norm()
{f}.norm(dim={d})
{f}.norm(1, {d}, True)
{f}.norm(float('inf'))
{a}.count_nonzero({d})
{f}.nansum({d})
{f}.nanmean()
{f}.median()
{f}.contiguous().median({d}).values
{f}.quantile(0.5)
{a}.sort({d})[0]
{a}.sort({d}, descending=True, stable=True)[1]
{a}.argsort({d}, stable=True)
{a}.topk(1, {d})[0]
{a}.kthvalue(1, {d}).values
{f}.mode({d}).values
{a}.sum(dim=())
{a}.sum(-1).sum()
{a}.unique()
{i}.flatten().bincount() if {i}.min() >= 0 else {i}
{a}.nonzero()
{f}.diff(dim={d})
{f}.trapezoid(dim={d})
{f}.cov()
{f}.histc(4, -2, 2)
{f}.renorm(2, {d}, 1.0)
{f}.dist({g})
{f}.trace()
{f}.std()
torch.linalg.norm({f})
torch.linalg.matrix_norm({f})
{f}.square().mean({d}, keepdim=True).add(1e-5).rsqrt() * {f}
({f} - {f}.mean({d}, True)) / ({f}.var({d}, keepdim=True) + 1).sqrt()
({f} - {f}.amax({d}, True)).exp().sum({d})
"""
_VIEW = """
{a}.t()
{a}.mT
{a}.transpose(0, -1)
{a}.flatten()
{a}.view(-1)
{a}.reshape(-1)
{a}.reshape(-1, 1)
{a}.reshape({a}.shape[0], -1)
{a}.unsqueeze({d})
{a}.squeeze()
{a}.squeeze({d})
{a}[0]
{a}[..., 0]
{a}[1:]
{a}[:-1]
{a}[..., ::2]
{a}[:, None]
{a}[-1]
{a}[..., 1:, :]
{a}[None, ..., None]
{a}.flip({d})
{a}.fliplr()
{a}.expand(2, *{a}.shape)
{a}.expand_as({b})
{a}.diagonal()
{a}.diagonal(1)
{a}.diag_embed()
{a}.unfold(-1, 2, 1)
{a}.chunk(2, {d})[0]
{a}.split(1, {d})[-1]
{a}.unbind({d})[0]
{a}.roll(1, {d})
{a}.roll((1, -1), (0, -1))
{a}.narrow({d}, 0, 1)
{a}.select({d}, 0)
{a}.contiguous()
{a}.clone()
{a}.detach()
{a}.permute(*range({a}.dim() - 1, -1, -1))
{a}.movedim(0, -1)
{a}.repeat(2, *[1] * ({a}.dim() - 1))
{a}.repeat_interleave(2)
{a}.repeat_interleave(2, dim={d})
F.pad({a}, (1, 2))
F.pad({a}, (1, 0), value=2)
F.pad({a}, (-1, 1))
F.pad({a}, (0, 0, 1, 1))
{a} + F.pad({a}, (1, 0))[..., :-1]
{a} + F.pad({a}, (0, 0, 1, 0))[..., :-1, :]
{f} / (F.pad({f}, (0, 0, 0, 1))[..., 1:, :].abs() + 1)
{f} * F.pad({f}, (0, 0, 2, 0))[..., :-2, :].softmax(-1)
torch.where(torch.arange({a}.shape[-2], device={a}.device)[:, None] > 0, {a}, F.pad({a}, (0, 0, 0, 1))[..., 1:, :])
{a} + {a}.roll(1, -2)
{f} - {f}.flip(-2)
{a}.tril()
{a}.triu(1)
torch.broadcast_to({a}, (3, *{a}.shape))
{a}.as_strided({a}.shape, {a}.stride())
{a}.as_strided((2, 2), (1, 1), 0)
{a}.rot90()
{a}.view_as({a})
{a}.unflatten(0, (1, -1))
{a}.unflatten(-1, (-1, 1))
{a}.index_select({d}, torch.tensor([0, 0], device={a}.device))
{a}[torch.tensor([0, -1], device={a}.device)]
{a}[..., torch.tensor([0], device={a}.device)]
{a}[[0], ...]
{a}[{m}]
{a}.masked_select({m})
{a}.gather({d}, torch.zeros_like({a}, dtype=torch.int64))
torch.take_along_dim({a}, {a}.argsort({d}, stable=True), {d})
{a}.take(torch.tensor([0, -1], device={a}.device))
{a}[{i}.clamp(0, 0).long()]
torch.atleast_2d({a})
torch.atleast_3d({a})
{a}.view(torch.int32)
{a}.swapaxes(0, -1)
{a}.tile((2,))
{a}.T
{a}.ravel()
{a}.new_zeros(3)
torch.zeros_like({a})
torch.ones_like({a}) + {a}
torch.full_like({a}, {k})
torch.empty_like({a}).copy_({b})
torch.arange({a}.shape[0], device={a}.device)
torch.linspace(-1, 1, {a}.shape[-1], device={a}.device)
torch.eye({a}.shape[0], device={a}.device)
{a} + torch.arange({a}.shape[-1], device={a}.device)
torch.tril_indices({a}.shape[0], 3, device={a}.device)
{a}.tensor_split(2)[0]
{a}.hsplit(1)[0]
{a}.new_full((2, 2), {k})
{a}.reshape({a}.shape[::-1])
{a}.slice_scatter({b}[:1], 0, 0, 1)
{a}.select_scatter({a}.select({d}, 0) * 2, {d}, -1)
{a}.diagonal_scatter({a}.diagonal() + 1)
{a}.masked_scatter({m}, {b})
{a}.index_add(0, torch.tensor([0, 0], device={a}.device), {a}[:1].expand(2, *{a}.shape[1:]))
{a}.index_fill({d}, torch.tensor([0], device={a}.device), {k})
{a}.index_copy(0, torch.tensor([0], device={a}.device), {a}[-1:])
{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64)[:1], {k})
{f}.scatter_add({d}, torch.zeros_like({f}, dtype=torch.int64), {f} * 1)
{f}.scatter_reduce({d}, torch.zeros_like({f}, dtype=torch.int64), {f}, 'amax')
{f}.index_reduce(0, torch.tensor([0], device={f}.device), {f}[:1] * 2, 'mean')
{a}.index_put((torch.tensor([0], device={a}.device),), {a}[-1:])
torch.channel_shuffle({f}.reshape(1, 4, -1, 1), 2)
{f}.reshape(1, -1, 1, {f}.shape[-1]).to(memory_format=torch.channels_last)
torch.combinations({a}.flatten()[:4])
torch.searchsorted({f}.flatten().sort()[0], {f}.flatten())
torch.tensor_split({a}, [1], {d})[1]
torch.diff({f}, prepend={f}[..., :1])
torch.stack({a}.unbind(0), -1)
torch.column_stack([{a}, {a}])
"""
_WRITE = """
{a}.add_({k})
{a}.mul_(2)
{a}.zero_()
{a}.fill_({k})
{a}[0] = {k}
{a}[..., 0] = 1
{a}[..., ::2] = 0
{a}[1:] += 1
{a}[1:] = {a}[:-1].clone()
{a}[:-1] += {a}[1:]
{a}.copy_({b})
{a}.add_({b})
{a}[0] = {b}[0]
{a}.mul_({b})
{a}.relu_()
{a}.neg_()
{a}.abs_()
{a}.clamp_(-1, 1)
{a} += 1
{a} *= {b}
{a} -= {a}
{a}.masked_fill_({m}, -1)
{a}[{a} > 0] = 1
{a}[{m}] *= 2
{a}[{m}] = {b}[{m}]
{a}.index_add_(0, torch.tensor([0], device={a}.device), {a}[:1].clone())
{a}.t()[0] = 3
{a}.view(-1)[0] = 5
{a}.index_fill_(0, torch.tensor([0], device={a}.device), 2)
{a}.scatter_(0, torch.zeros_like({a}, dtype=torch.int64), 1)
{a}.scatter_add_(0, torch.zeros_like({a}, dtype=torch.int64)[:1], {a}[:1].clone())
{a}.index_put_((torch.tensor([0], device={a}.device),), {a}[-1:])
{a}.index_copy_(0, torch.tensor([0], device={a}.device), {a}[-1:].clone())
{a}.diagonal().add_(1)
{a}.transpose(0, -1).mul_(2)
{a}.flatten().add_(1)
{a}.squeeze_()
{a}.unsqueeze_(0)
{a}.t_()
{a}.transpose_(0, -1)
{a}[torch.tensor([0, 0], device={a}.device)] += 1
{a}.index_put_((torch.tensor([0, 0], device={a}.device),), {a}[:1].clone(), accumulate=True)
{f}.sigmoid_()
{f}.tanh_()
{f}.exp_()
{f}.sqrt_()
{a}.select(0, 0).copy_({a}.select(0, -1).clone())
{a}.addcmul_({b}, {b})
{f}.lerp_({g}, 0.5)
{a}.swapaxes_(0, -1)
{a}.sub_({b}, alpha=2)
{a}.div_(2)
{a}.floor_()
{a}.pow_(2)
{a}.logical_not_()
{a}.clamp_min_({k})
{a}.bitwise_and_(3)
{a}.data.add_(1)
{a}.detach().mul_(2)
{a}.cumsum_(0)
{a}.tril_()
{a}.fill_diagonal_({k})
{a}.unsqueeze(0).add_({k})
{a}.expand(2, *{a}.shape)[0].add_(1)
{a}.narrow(0, 0, 1).zero_()
{a}.chunk(2)[0].mul_(3)
{a}.split(1)[-1].copy_({a}.split(1)[0].clone())
{a}.unbind(0)[0].add_({k})
{a}.view_as({a}).mul_({b})
{a}.masked_scatter_({m}, {b})
{a}.flip(0)[0] = 9
{a}.remainder_({z})
{a}.addcdiv_({f}, {f}.abs() + 1)
{a}.addmm_({f}, {f}.mT)
torch.add({a}, {k}, out={b})
torch.mul({a}, {b}, out={a})
torch.sin({f}, out=torch.empty_like({f}))
torch.sum({a}, 0, out={b}[0])
torch.cat([{a}, {a}], out={b})
torch.abs({a}, out={a})
torch.clamp({a}, -1, 1, out={b})
torch.where({m}, {a}, {a} * 2, out={b})
torch.matmul({f}, {f}.mT, out=torch.empty(0, dtype={f}.dtype, device={f}.device))
torch._foreach_add_([{a}, {b}], 1)
torch._foreach_mul_([{a}], 2)
F.relu({a}, inplace=True)
F.leaky_relu({f}, 0.1, inplace=True)
F.silu({f}, inplace=True)
F.hardtanh_({f})
F.elu_({f})
"""
#: Templates by group, and how often a statement comes from it.
GROUPS: dict[str, tuple[int, list[str]]] = {
    name: (weight, text.strip().splitlines())
    for name, weight, text in (
        ("unary", 5, _UNARY), ("binary", 5, _BINARY), ("product", 3, _PRODUCT), ("reduction", 4, _REDUCTION),
        ("view", 5, _VIEW), ("write", 4, _WRITE),
    )
}  # fmt: skip
