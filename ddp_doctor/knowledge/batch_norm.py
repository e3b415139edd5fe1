"""From which batch on BatchNorm needs no help."""

#: Samples on each rank. The error of ResNet-50 on ImageNet with BatchNorm, in per cent, by the batch of a GPU:
#: 23.6 with 32, 23.7 with 16, 24.8 with 8, 27.3 with 4, 34.7 with 2 (Wu and He, Group Normalization, 2018,
#: table 2).
SMALL_BATCH = 16
#: With so few of them the error is plainly greater.
FEW_SAMPLES = 4
