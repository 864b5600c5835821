"""The modules of this package with kernels, imported when one of their kernels is needed."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, str] = {
    "activation": "Celu Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Selu Shrink "
    "Sigmoid Softplus Softsign Swish ThresholdedRelu",
    "columns": "Col2Im",
    "conv_transpose": "ConvTranspose",
    "convolution": "Conv",
    "convolution_gradient": "ConvWeightsGradient",
    "creation": "ConstantOfShape Range",
    "deform": "DeformConv",
    "dot_attention": "Attention",
    "elementwise": "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd "
    "BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Cos Cosh Div Dropout "
    "Equal Exp Floor Greater GreaterOrEqual Identity IsNaN Less LessOrEqual Log Max "
    "Mean Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sign Sin Sinh Sqrt Sub Sum "
    "Tan Tanh Xor",
    "fused": "Fused",
    "grid_sample": "AffineGrid GridSample",
    "indexing": "GatherND OneHot ScatterElements ScatterND TensorScatter TopK",
    "integer_conv": "ConvInteger QLinearConv",
    "integer_matmul": "MatMulInteger QLinearMatMul",
    "linear_algebra": "Cofactors Det Einsum Gemm MatMul",
    "linear_attention": "LinearAttention",
    "logic": "IsInf Where",
    "movement": "Concat Expand Pad Tile Transpose Trilu",
    "normalization": "BatchNormalization GroupNormalization InstanceNormalization LRN "
    "LayerNormalization LpNormalization MeanVarianceNormalization RMSNormalization",
    "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool "
    "MaxPoolGradient MaxUnpool",
    "quantization": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "randomness": "Philox",
    "rearranging": "DepthToSpace EyeLike ReverseSequence SpaceToDepth",
    "recurrent": "GRU LSTM RNN",
    "reduction": "ArgMax ArgMin CumProd CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
    "reshaping": "Flatten Reshape Shape Size Squeeze Unsqueeze",
    "resize": "Resize",
    "roi_align": "RoiAlign",
    "selecting": "Bounded.Compress Bounded.NonMaxSuppression Bounded.NonZero Bounded.Unique",
    "signal": "DFT MelWeightMatrix STFT",
    "slicing": "Gather GatherElements Slice Split",
    "softmax": "Hardmax LogSoftmax Softmax",
    "state": "After Assign Group",
}
"""The operators of each. Kernels of one that is not listed are found when all are imported."""

FAMILY_OF: Mapping[str, str] = {
    op: family for family, operators in FAMILIES.items() for op in operators.split()
}
