"""Operators as methods of tensors; `make methods` writes this file."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .arithmetic import Arithmetic
from .named_tensor import Tensor

Integers: TypeAlias = Sequence[int] | NDArray[np.integer]

class OperatorMethods(Arithmetic):
    def abs(self, *, name: str | None = None) -> Tensor:
        """Abs with this tensor as x; returns y."""
    def acos(self, *, name: str | None = None) -> Tensor:
        """Acos with this tensor as x; returns y."""
    def acosh(self, *, name: str | None = None) -> Tensor:
        """Acosh with this tensor as x; returns y."""
    def add(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Add with this tensor as a; returns y."""
    def affine_grid(
        self,
        size: ArrayLike,
        *,
        align_corners: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """AffineGrid with this tensor as theta; returns grid."""
    def after(self, *others: ArrayLike, name: str | None = None) -> Tensor:
        """After with this tensor as x; returns y."""
    def and_(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """And with this tensor as a; returns y."""
    def arg_max(
        self,
        *,
        axis: int = 0,
        keepdims: bool = True,
        select_last_index: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """ArgMax with this tensor as data; returns y."""
    def arg_min(
        self,
        *,
        axis: int = 0,
        keepdims: bool = True,
        select_last_index: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """ArgMin with this tensor as data; returns y."""
    def asin(self, *, name: str | None = None) -> Tensor:
        """Asin with this tensor as x; returns y."""
    def asinh(self, *, name: str | None = None) -> Tensor:
        """Asinh with this tensor as x; returns y."""
    def atan(self, *, name: str | None = None) -> Tensor:
        """Atan with this tensor as x; returns y."""
    def atanh(self, *, name: str | None = None) -> Tensor:
        """Atanh with this tensor as x; returns y."""
    def attention(
        self,
        k: ArrayLike,
        v: ArrayLike,
        attn_mask: ArrayLike | None = None,
        past_key: ArrayLike | None = None,
        past_value: ArrayLike | None = None,
        nonpad_kv_seqlen: ArrayLike | None = None,
        *,
        is_causal: bool = False,
        kv_num_heads: int | None = None,
        left_window_size: int = -1,
        q_num_heads: int | None = None,
        qk_matmul_output_mode: Literal[0, 1, 2, 3] = 0,
        right_window_size: int = -1,
        scale: float | None = None,
        softcap: float = 0.0,
        softmax_precision: DTypeLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Attention with this tensor as q; returns y."""
    def average_pool(
        self,
        *,
        kernel_shape: Integers,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """AveragePool with this tensor as x; returns y."""
    def batch_normalization(
        self,
        scale: ArrayLike,
        bias: ArrayLike,
        mean: ArrayLike,
        variance: ArrayLike,
        *,
        epsilon: float = 1e-05,
        momentum: float = 0.9,
        training_mode: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """BatchNormalization with this tensor as x; returns y."""
    def bernoulli(
        self,
        *,
        seed: float | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Bernoulli with this tensor as x; returns y."""
    def bit_cast(self, *, to: DTypeLike, name: str | None = None) -> Tensor:
        """BitCast with this tensor as x; returns y."""
    def bit_shift(
        self,
        y: ArrayLike,
        *,
        direction: Literal['LEFT', 'RIGHT'],
        name: str | None = None,
    ) -> Tensor:
        """BitShift with this tensor as x; returns y."""
    def bitwise_and(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """BitwiseAnd with this tensor as a; returns y."""
    def bitwise_not(self, *, name: str | None = None) -> Tensor:
        """BitwiseNot with this tensor as x; returns y."""
    def bitwise_or(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """BitwiseOr with this tensor as a; returns y."""
    def bitwise_xor(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """BitwiseXor with this tensor as a; returns y."""
    def cast(
        self,
        *,
        to: DTypeLike,
        saturate: bool = True,
        round_mode: Literal['up', 'down', 'nearest'] = 'up',
        name: str | None = None,
    ) -> Tensor:
        """Cast with this tensor as x; returns y."""
    def cast_like(
        self,
        target_type: ArrayLike,
        *,
        saturate: bool = True,
        round_mode: Literal['up', 'down', 'nearest'] = 'up',
        name: str | None = None,
    ) -> Tensor:
        """CastLike with this tensor as x; returns y."""
    def ceil(self, *, name: str | None = None) -> Tensor:
        """Ceil with this tensor as x; returns y."""
    def celu(self, *, alpha: float = 1.0, name: str | None = None) -> Tensor:
        """Celu with this tensor as x; returns y."""
    def clip(
        self,
        min: ArrayLike | None = None,
        max: ArrayLike | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """Clip with this tensor as x; returns y."""
    def cofactors(self, *, name: str | None = None) -> Tensor:
        """Cofactors with this tensor as x; returns y."""
    def col2_im(
        self,
        image_shape: ArrayLike,
        block_shape: ArrayLike,
        *,
        dilations: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Col2Im with this tensor as x; returns y."""
    def compress(
        self,
        condition: ArrayLike,
        *,
        axis: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Compress with this tensor as x; returns y."""
    def concat(self, *x: ArrayLike, axis: int, name: str | None = None) -> Tensor:
        """Concat with this tensor as x; returns y."""
    def constant_of_shape(
        self,
        *,
        value: float = 0,
        dtype: DTypeLike = 'float32',
        name: str | None = None,
    ) -> Tensor:
        """ConstantOfShape with this tensor as shape; returns y."""
    def conv(
        self,
        w: ArrayLike,
        b: ArrayLike | None = None,
        *,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        kernel_shape: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        group: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """Conv with this tensor as x; returns y."""
    def conv_integer(
        self,
        w: ArrayLike,
        x_zero_point: ArrayLike | None = None,
        w_zero_point: ArrayLike | None = None,
        *,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        kernel_shape: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        group: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """ConvInteger with this tensor as x; returns y."""
    def conv_transpose(
        self,
        w: ArrayLike,
        b: ArrayLike | None = None,
        *,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        kernel_shape: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        group: int = 1,
        output_padding: Integers | None = None,
        output_shape: Integers | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ConvTranspose with this tensor as x; returns y."""
    def conv_weights_gradient(
        self,
        dy: ArrayLike,
        *,
        kernel_shape: Integers,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        group: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """ConvWeightsGradient with this tensor as x; returns y."""
    def cos(self, *, name: str | None = None) -> Tensor:
        """Cos with this tensor as x; returns y."""
    def cosh(self, *, name: str | None = None) -> Tensor:
        """Cosh with this tensor as x; returns y."""
    def cum_prod(
        self,
        axis: ArrayLike,
        *,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """CumProd with this tensor as x; returns y."""
    def cum_sum(
        self,
        axis: ArrayLike,
        *,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """CumSum with this tensor as x; returns y."""
    def deform_conv(
        self,
        w: ArrayLike,
        offset: ArrayLike,
        b: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        *,
        dilations: Integers | None = None,
        kernel_shape: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        group: int = 1,
        offset_group: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """DeformConv with this tensor as x; returns y."""
    def depth_to_space(
        self,
        *,
        blocksize: int,
        mode: Literal['DCR', 'CRD'] = 'DCR',
        name: str | None = None,
    ) -> Tensor:
        """DepthToSpace with this tensor as x; returns y."""
    def dequantize_linear(
        self,
        x_scale: ArrayLike,
        x_zero_point: ArrayLike | None = None,
        *,
        axis: int = 1,
        block_size: int = 0,
        output_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """DequantizeLinear with this tensor as x; returns y."""
    def det(self, *, name: str | None = None) -> Tensor:
        """Det with this tensor as x; returns y."""
    def dft(
        self,
        dft_length: ArrayLike | None = None,
        axis: ArrayLike | None = None,
        *,
        inverse: bool = False,
        onesided: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """DFT with this tensor as input; returns output."""
    def div(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Div with this tensor as a; returns y."""
    def dropout(
        self,
        ratio: ArrayLike | None = None,
        training_mode: ArrayLike | None = None,
        *,
        seed: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Dropout with this tensor as x; returns y."""
    def dynamic_quantize_linear(self, *, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """DynamicQuantizeLinear with this tensor as x; returns y, y_scale, y_zero_point."""
    def einsum(self, *x: ArrayLike, equation: str, name: str | None = None) -> Tensor:
        """Einsum with this tensor as x; returns y."""
    def elu(self, *, alpha: float = 1.0, name: str | None = None) -> Tensor:
        """Elu with this tensor as x; returns y."""
    def equal(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Equal with this tensor as a; returns y."""
    def erf(self, *, name: str | None = None) -> Tensor:
        """Erf with this tensor as x; returns y."""
    def exp(self, *, name: str | None = None) -> Tensor:
        """Exp with this tensor as x; returns y."""
    def expand(self, shape: ArrayLike, *, name: str | None = None) -> Tensor:
        """Expand with this tensor as x; returns y."""
    def eye_like(
        self,
        *,
        dtype: DTypeLike | None = None,
        k: int = 0,
        name: str | None = None,
    ) -> Tensor:
        """EyeLike with this tensor as x; returns y."""
    def floor(self, *, name: str | None = None) -> Tensor:
        """Floor with this tensor as x; returns y."""
    def gather(self, indices: ArrayLike, *, axis: int = 0, name: str | None = None) -> Tensor:
        """Gather with this tensor as data; returns y."""
    def gather_elements(
        self,
        indices: ArrayLike,
        *,
        axis: int = 0,
        name: str | None = None,
    ) -> Tensor:
        """GatherElements with this tensor as data; returns y."""
    def gather_nd(
        self,
        indices: ArrayLike,
        *,
        batch_dims: int = 0,
        name: str | None = None,
    ) -> Tensor:
        """GatherND with this tensor as data; returns y."""
    def gelu(
        self,
        *,
        approximate: Literal['none', 'tanh'] = 'none',
        name: str | None = None,
    ) -> Tensor:
        """Gelu with this tensor as x; returns y."""
    def gemm(
        self,
        b: ArrayLike,
        c: ArrayLike | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        transA: bool = False,
        transB: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Gemm with this tensor as a; returns y."""
    def global_average_pool(self, *, name: str | None = None) -> Tensor:
        """GlobalAveragePool with this tensor as x; returns y."""
    def global_lp_pool(self, *, p: int = 2, name: str | None = None) -> Tensor:
        """GlobalLpPool with this tensor as x; returns y."""
    def global_max_pool(self, *, name: str | None = None) -> Tensor:
        """GlobalMaxPool with this tensor as x; returns y."""
    def greater(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Greater with this tensor as a; returns y."""
    def greater_or_equal(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """GreaterOrEqual with this tensor as a; returns y."""
    def grid_sample(
        self,
        grid: ArrayLike,
        *,
        align_corners: bool = False,
        mode: Literal['nearest', 'linear', 'cubic'] = 'linear',
        padding_mode: Literal['zeros', 'border', 'reflection'] = 'zeros',
        name: str | None = None,
    ) -> Tensor:
        """GridSample with this tensor as x; returns y."""
    def group(self, *x: ArrayLike, name: str | None = None) -> Tensor:
        """Group with this tensor as x; returns y."""
    def group_normalization(
        self,
        scale: ArrayLike,
        bias: ArrayLike,
        *,
        num_groups: int,
        epsilon: float = 1e-05,
        stash_type: Literal[1] = 1,
        name: str | None = None,
    ) -> Tensor:
        """GroupNormalization with this tensor as x; returns y."""
    def gru(
        self,
        w: ArrayLike,
        r: ArrayLike,
        b: ArrayLike | None = None,
        sequence_lens: ArrayLike | None = None,
        initial_h: ArrayLike | None = None,
        *,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        activations: Sequence[str] | None = None,
        clip: float | None = None,
        direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
        hidden_size: int | None = None,
        layout: Literal[0, 1] = 0,
        linear_before_reset: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """GRU with this tensor as x; returns y."""
    def hard_sigmoid(
        self,
        *,
        alpha: float = 0.2,
        beta: float = 0.5,
        name: str | None = None,
    ) -> Tensor:
        """HardSigmoid with this tensor as x; returns y."""
    def hard_swish(self, *, name: str | None = None) -> Tensor:
        """HardSwish with this tensor as x; returns y."""
    def hardmax(self, *, axis: int = -1, name: str | None = None) -> Tensor:
        """Hardmax with this tensor as x; returns y."""
    def identity(self, *, name: str | None = None) -> Tensor:
        """Identity with this tensor as x; returns y."""
    def instance_normalization(
        self,
        scale: ArrayLike,
        bias: ArrayLike,
        *,
        epsilon: float = 1e-05,
        name: str | None = None,
    ) -> Tensor:
        """InstanceNormalization with this tensor as x; returns y."""
    def is_inf(
        self,
        *,
        detect_negative: bool = True,
        detect_positive: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """IsInf with this tensor as x; returns y."""
    def is_nan(self, *, name: str | None = None) -> Tensor:
        """IsNaN with this tensor as x; returns y."""
    def l1(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceL1 along an axis, several, or all, which are dropped by default."""
    def l2(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceL2 along an axis, several, or all, which are dropped by default."""
    def layer_normalization(
        self,
        scale: ArrayLike,
        bias: ArrayLike | None = None,
        *,
        axis: int = -1,
        epsilon: float = 1e-05,
        stash_type: Literal[1] = 1,
        name: str | None = None,
    ) -> Tensor:
        """LayerNormalization with this tensor as x; returns y."""
    def leaky_relu(self, *, alpha: float = 0.01, name: str | None = None) -> Tensor:
        """LeakyRelu with this tensor as x; returns y."""
    def less(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Less with this tensor as a; returns y."""
    def less_or_equal(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """LessOrEqual with this tensor as a; returns y."""
    def linear_attention(
        self,
        key: ArrayLike,
        value: ArrayLike,
        past_state: ArrayLike | None = None,
        decay: ArrayLike | None = None,
        beta: ArrayLike | None = None,
        *,
        kv_num_heads: int,
        q_num_heads: int,
        chunk_size: int = 64,
        scale: float = 0.0,
        update_rule: Literal['linear', 'gated', 'delta', 'gated_delta'] = 'gated_delta',
        name: str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """LinearAttention with this tensor as query; returns output, present_state."""
    def log(self, *, name: str | None = None) -> Tensor:
        """Log with this tensor as x; returns y."""
    def log_softmax(self, *, axis: int = -1, name: str | None = None) -> Tensor:
        """LogSoftmax with this tensor as x; returns y."""
    def log_sum(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceLogSum along an axis, several, or all, which are dropped by default."""
    def log_sum_exp(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceLogSumExp along an axis, several, or all, which are dropped by default."""
    def lp_normalization(
        self,
        *,
        axis: int = -1,
        p: Literal[1, 2] = 2,
        name: str | None = None,
    ) -> Tensor:
        """LpNormalization with this tensor as x; returns y."""
    def lp_pool(
        self,
        *,
        kernel_shape: Integers,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        ceil_mode: bool = False,
        p: int = 2,
        name: str | None = None,
    ) -> Tensor:
        """LpPool with this tensor as x; returns y."""
    def lrn(
        self,
        *,
        size: int,
        alpha: float = 0.0001,
        beta: float = 0.75,
        bias: float = 1.0,
        name: str | None = None,
    ) -> Tensor:
        """LRN with this tensor as x; returns y."""
    def lstm(
        self,
        w: ArrayLike,
        r: ArrayLike,
        b: ArrayLike | None = None,
        sequence_lens: ArrayLike | None = None,
        initial_h: ArrayLike | None = None,
        initial_c: ArrayLike | None = None,
        p: ArrayLike | None = None,
        *,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        activations: Sequence[str] | None = None,
        clip: float | None = None,
        direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
        hidden_size: int | None = None,
        layout: Literal[0, 1] = 0,
        input_forget: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """LSTM with this tensor as x; returns y."""
    def mat_mul(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """MatMul with this tensor as a; returns y."""
    def mat_mul_integer(
        self,
        b: ArrayLike,
        a_zero_point: ArrayLike | None = None,
        b_zero_point: ArrayLike | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """MatMulInteger with this tensor as a; returns y."""
    def max(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceMax along an axis, several, or all, which are dropped by default."""
    def max_pool(
        self,
        *,
        kernel_shape: Integers,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        ceil_mode: bool = False,
        storage_order: Literal[0, 1] = 0,
        name: str | None = None,
    ) -> Tensor:
        """MaxPool with this tensor as x; returns y."""
    def max_pool_gradient(
        self,
        indices: ArrayLike,
        shape: ArrayLike,
        *,
        kernel_shape: Integers,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """MaxPoolGradient with this tensor as dy; returns y."""
    def max_unpool(
        self,
        indices: ArrayLike,
        output_shape: ArrayLike | None = None,
        *,
        kernel_shape: Integers,
        pads: Integers | None = None,
        strides: Integers | None = None,
        name: str | None = None,
    ) -> Tensor:
        """MaxUnpool with this tensor as x; returns y."""
    def mean(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceMean along an axis, several, or all, which are dropped by default."""
    def mean_variance_normalization(
        self,
        *,
        axes: Integers = (0, 2, 3),
        name: str | None = None,
    ) -> Tensor:
        """MeanVarianceNormalization with this tensor as x; returns y."""
    def mel_weight_matrix(
        self,
        dft_length: ArrayLike,
        sample_rate: ArrayLike,
        lower_edge_hertz: ArrayLike,
        upper_edge_hertz: ArrayLike,
        *,
        output_datatype: DTypeLike = 'float32',
        name: str | None = None,
    ) -> Tensor:
        """MelWeightMatrix with this tensor as num_mel_bins; returns output."""
    def min(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceMin along an axis, several, or all, which are dropped by default."""
    def mish(self, *, name: str | None = None) -> Tensor:
        """Mish with this tensor as x; returns y."""
    def mod(self, b: ArrayLike, *, fmod: bool = False, name: str | None = None) -> Tensor:
        """Mod with this tensor as a; returns y."""
    def mul(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Mul with this tensor as a; returns y."""
    def multinomial(
        self,
        *,
        dtype: DTypeLike = 'int32',
        sample_size: int = 1,
        seed: float | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Multinomial with this tensor as x; returns y."""
    def neg(self, *, name: str | None = None) -> Tensor:
        """Neg with this tensor as x; returns y."""
    def non_max_suppression(
        self,
        scores: ArrayLike,
        max_output_boxes_per_class: ArrayLike | None = None,
        iou_threshold: ArrayLike | None = None,
        score_threshold: ArrayLike | None = None,
        *,
        center_point_box: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """NonMaxSuppression with this tensor as boxes; returns y."""
    def non_zero(self, *, name: str | None = None) -> Tensor:
        """NonZero with this tensor as x; returns y."""
    def not_(self, *, name: str | None = None) -> Tensor:
        """Not with this tensor as x; returns y."""
    def one_hot(
        self,
        depth: ArrayLike,
        values: ArrayLike,
        *,
        axis: int = -1,
        name: str | None = None,
    ) -> Tensor:
        """OneHot with this tensor as indices; returns y."""
    def or_(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Or with this tensor as a; returns y."""
    def p_relu(self, slope: ArrayLike, *, name: str | None = None) -> Tensor:
        """PRelu with this tensor as x; returns y."""
    def pad(
        self,
        pads: ArrayLike,
        constant_value: ArrayLike | None = None,
        axes: ArrayLike | None = None,
        *,
        mode: Literal['constant', 'reflect', 'edge', 'wrap'] = 'constant',
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Pad with this tensor as data; returns y."""
    def philox(
        self,
        shape: ArrayLike,
        *,
        distribution: Literal['integer', 'uniform', 'normal'] = 'uniform',
        dtype: DTypeLike = 'float32',
        sequence: int = 0,
        seeded: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Philox with this tensor as key; returns y."""
    def pow(self, y: ArrayLike, *, name: str | None = None) -> Tensor:
        """Pow with this tensor as x; returns y."""
    def prod(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceProd along an axis, several, or all, which are dropped by default."""
    def q_linear_conv(
        self,
        x_scale: ArrayLike,
        x_zero_point: ArrayLike,
        w: ArrayLike,
        w_scale: ArrayLike,
        w_zero_point: ArrayLike,
        y_scale: ArrayLike,
        y_zero_point: ArrayLike,
        b: ArrayLike | None = None,
        *,
        auto_pad: Literal['NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'] = 'NOTSET',
        dilations: Integers | None = None,
        kernel_shape: Integers | None = None,
        pads: Integers | None = None,
        strides: Integers | None = None,
        group: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """QLinearConv with this tensor as x; returns y."""
    def q_linear_mat_mul(
        self,
        a_scale: ArrayLike,
        a_zero_point: ArrayLike,
        b: ArrayLike,
        b_scale: ArrayLike,
        b_zero_point: ArrayLike,
        y_scale: ArrayLike,
        y_zero_point: ArrayLike,
        *,
        name: str | None = None,
    ) -> Tensor:
        """QLinearMatMul with this tensor as a; returns y."""
    def quantize_linear(
        self,
        y_scale: ArrayLike,
        y_zero_point: ArrayLike | None = None,
        *,
        axis: int = 1,
        block_size: int = 0,
        output_dtype: DTypeLike | None = None,
        precision: DTypeLike | None = None,
        saturate: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """QuantizeLinear with this tensor as x; returns y."""
    def random_normal_like(
        self,
        *,
        mean: float = 0.0,
        scale: float = 1.0,
        seed: float | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """RandomNormalLike with this tensor as x; returns y."""
    def random_uniform_like(
        self,
        *,
        low: float = 0.0,
        high: float = 1.0,
        seed: float | None = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> Tensor:
        """RandomUniformLike with this tensor as x; returns y."""
    def range(
        self,
        limit: ArrayLike,
        delta: ArrayLike,
        *,
        stash_type: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """Range with this tensor as start; returns y."""
    def reciprocal(self, *, name: str | None = None) -> Tensor:
        """Reciprocal with this tensor as x; returns y."""
    def reduce_l1(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceL1 with this tensor as data; returns y."""
    def reduce_l2(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceL2 with this tensor as data; returns y."""
    def reduce_log_sum(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceLogSum with this tensor as data; returns y."""
    def reduce_log_sum_exp(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceLogSumExp with this tensor as data; returns y."""
    def reduce_max(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceMax with this tensor as data; returns y."""
    def reduce_mean(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceMean with this tensor as data; returns y."""
    def reduce_min(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceMin with this tensor as data; returns y."""
    def reduce_prod(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceProd with this tensor as data; returns y."""
    def reduce_sum(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceSum with this tensor as data; returns y."""
    def reduce_sum_square(
        self,
        axes: ArrayLike | None = None,
        *,
        keepdims: bool = True,
        noop_with_empty_axes: bool = False,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """ReduceSumSquare with this tensor as data; returns y."""
    def relu(self, *, name: str | None = None) -> Tensor:
        """Relu with this tensor as x; returns y."""
    def resize(
        self,
        roi: ArrayLike | None = None,
        scales: ArrayLike | None = None,
        sizes: ArrayLike | None = None,
        *,
        antialias: bool = False,
        axes: Integers | None = None,
        coordinate_transformation_mode: Literal['half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric', 'tf_crop_and_resize'] = 'half_pixel',
        cubic_coeff_a: float = -0.75,
        exclude_outside: bool = False,
        extrapolation_value: float = 0.0,
        keep_aspect_ratio_policy: Literal['stretch', 'not_larger', 'not_smaller'] = 'stretch',
        mode: Literal['nearest', 'linear', 'cubic'] = 'nearest',
        nearest_mode: Literal['round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'] = 'round_prefer_floor',
        name: str | None = None,
    ) -> Tensor:
        """Resize with this tensor as x; returns y."""
    def reverse_sequence(
        self,
        sequence_lens: ArrayLike,
        *,
        batch_axis: int = 1,
        time_axis: int = 0,
        name: str | None = None,
    ) -> Tensor:
        """ReverseSequence with this tensor as x; returns y."""
    def rms_normalization(
        self,
        scale: ArrayLike,
        *,
        axis: int = -1,
        epsilon: float = 1e-05,
        stash_type: Literal[1] = 1,
        name: str | None = None,
    ) -> Tensor:
        """RMSNormalization with this tensor as x; returns y."""
    def rnn(
        self,
        w: ArrayLike,
        r: ArrayLike,
        b: ArrayLike | None = None,
        sequence_lens: ArrayLike | None = None,
        initial_h: ArrayLike | None = None,
        *,
        activation_alpha: Sequence[float] | None = None,
        activation_beta: Sequence[float] | None = None,
        activations: Sequence[str] = ('Tanh', 'Tanh'),
        clip: float | None = None,
        direction: Literal['forward', 'reverse', 'bidirectional'] = 'forward',
        hidden_size: int | None = None,
        layout: Literal[0, 1] = 0,
        name: str | None = None,
    ) -> Tensor:
        """RNN with this tensor as x; returns y."""
    def roi_align(
        self,
        rois: ArrayLike,
        batch_indices: ArrayLike,
        *,
        coordinate_transformation_mode: Literal['half_pixel', 'output_half_pixel'] = 'half_pixel',
        mode: Literal['avg', 'max'] = 'avg',
        output_height: int = 1,
        output_width: int = 1,
        sampling_ratio: int = 0,
        spatial_scale: float = 1.0,
        name: str | None = None,
    ) -> Tensor:
        """RoiAlign with this tensor as x; returns y."""
    def round(self, *, name: str | None = None) -> Tensor:
        """Round with this tensor as x; returns y."""
    def scatter_elements(
        self,
        indices: ArrayLike,
        updates: ArrayLike,
        *,
        axis: int = 0,
        reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
        name: str | None = None,
    ) -> Tensor:
        """ScatterElements with this tensor as data; returns y."""
    def scatter_nd(
        self,
        indices: ArrayLike,
        updates: ArrayLike,
        *,
        reduction: Literal['none', 'add', 'mul', 'max', 'min'] = 'none',
        name: str | None = None,
    ) -> Tensor:
        """ScatterND with this tensor as data; returns y."""
    def selu(
        self,
        *,
        alpha: float = 1.6732631921768188,
        gamma: float = 1.0507010221481323,
        name: str | None = None,
    ) -> Tensor:
        """Selu with this tensor as x; returns y."""
    def shrink(self, *, bias: float = 0.0, lambd: float = 0.5, name: str | None = None) -> Tensor:
        """Shrink with this tensor as x; returns y."""
    def sigmoid(self, *, name: str | None = None) -> Tensor:
        """Sigmoid with this tensor as x; returns y."""
    def sign(self, *, name: str | None = None) -> Tensor:
        """Sign with this tensor as x; returns y."""
    def sin(self, *, name: str | None = None) -> Tensor:
        """Sin with this tensor as x; returns y."""
    def sinh(self, *, name: str | None = None) -> Tensor:
        """Sinh with this tensor as x; returns y."""
    def size(self, *, name: str | None = None) -> Tensor:
        """Size with this tensor as data; returns y."""
    def slice(
        self,
        starts: ArrayLike,
        ends: ArrayLike,
        axes: ArrayLike | None = None,
        steps: ArrayLike | None = None,
        *,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Slice with this tensor as data; returns y."""
    def softmax(self, *, axis: int = -1, name: str | None = None) -> Tensor:
        """Softmax with this tensor as x; returns y."""
    def softplus(self, *, name: str | None = None) -> Tensor:
        """Softplus with this tensor as x; returns y."""
    def softsign(self, *, name: str | None = None) -> Tensor:
        """Softsign with this tensor as x; returns y."""
    def space_to_depth(
        self,
        *,
        blocksize: int,
        mode: Literal['DCR', 'CRD'] = 'DCR',
        name: str | None = None,
    ) -> Tensor:
        """SpaceToDepth with this tensor as x; returns y."""
    def sqrt(self, *, name: str | None = None) -> Tensor:
        """Sqrt with this tensor as x; returns y."""
    def stft(
        self,
        frame_step: ArrayLike,
        window: ArrayLike | None = None,
        frame_length: ArrayLike | None = None,
        *,
        onesided: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """STFT with this tensor as signal; returns output."""
    def sub(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Sub with this tensor as a; returns y."""
    def sum(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceSum along an axis, several, or all, which are dropped by default."""
    def sum_square(
        self,
        axis: int | Integers | Tensor | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> Tensor:
        """ReduceSumSquare along an axis, several, or all, which are dropped by default."""
    def swish(self, *, alpha: float = 1.0, name: str | None = None) -> Tensor:
        """Swish with this tensor as x; returns y."""
    def tan(self, *, name: str | None = None) -> Tensor:
        """Tan with this tensor as x; returns y."""
    def tanh(self, *, name: str | None = None) -> Tensor:
        """Tanh with this tensor as x; returns y."""
    def tensor_scatter(
        self,
        update: ArrayLike,
        write_indices: ArrayLike | None = None,
        *,
        axis: int = -2,
        mode: Literal['linear', 'circular'] = 'linear',
        name: str | None = None,
    ) -> Tensor:
        """TensorScatter with this tensor as past_cache; returns y."""
    def thresholded_relu(self, *, alpha: float = 1.0, name: str | None = None) -> Tensor:
        """ThresholdedRelu with this tensor as x; returns y."""
    def tile(self, repeats: ArrayLike, *, name: str | None = None) -> Tensor:
        """Tile with this tensor as x; returns y."""
    def trilu(
        self,
        k: ArrayLike | None = None,
        *,
        upper: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """Trilu with this tensor as x; returns y."""
    def unique(
        self,
        *,
        axis: int | None = None,
        sorted: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """Unique with this tensor as x; returns y."""
    def unsqueeze(
        self,
        axes: ArrayLike | None = None,
        *,
        axis: int | Integers | Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Unsqueeze with this tensor as data; returns y."""
    def where(self, x: ArrayLike, y: ArrayLike, *, name: str | None = None) -> Tensor:
        """Where with this tensor as condition; returns y."""
    def xor(self, b: ArrayLike, *, name: str | None = None) -> Tensor:
        """Xor with this tensor as a; returns y."""
