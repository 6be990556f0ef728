"""The public constants of model `audience`, chosen once for all data sets on validation data."""

# A description of a person with h items: the sum of the items' rows of `columns` / (h + PROFILE_OFFSET), and
# log h − USUAL_LOG_PROFILE, projected to K numbers of variance 1, and scaled down to norm DESCRIPTION_LIMIT · √K
PROFILE_OFFSET = 5.0
USUAL_LOG_PROFILE = 4.3
DESCRIPTION_LIMIT = 2.0
LEAST_VARIANCE = 0.01  # lower bound on the variance of descriptions in any direction, for whitening
TASTE_SPREAD = 4.0  # factor of taste columns in the first pass
LATER_TASTE_SPREAD = 2.0  # factor of taste columns in the second pass, where audiences have mean square 1
POPULARITY_SPREAD = 0.7  # factor of log-popularity in the second pass
FEWEST_COLUMNS = 8  # of the first pass: random signs of the items replace missing taste columns

# Tables that devices send
WEIGHT_OFFSET, WEIGHT_POWER = 20.0, 0.4  # an item that n people chose has weight (n + 20)^(−0.4) in audience blocks
COUNT_WEIGHT_POWER = 0.7  # the same power in count blocks, so that the second count is more precise for rare items

# Scores
AUDIENCE_WEIGHT, DENSITY_WEIGHT, PREFERENCE_WEIGHT = 0.15, 0.6, 0.5  # β, γ, θ of the score in `models.audience`
CROWD_ITEMS = 5.0  # c of that score: the weight of the population as a prior, in items
KERNEL_LENGTH = 0.5  # length scale of the similarity of two items, in their coordinates
AUDIENCE_SCALE, TASTE_SCALE, POPULARITY_SCALE = 1.2, 1.0, 0.3  # factors of the three parts of an item's coordinates
AUDIENCE_FEATURE, TASTE_FEATURE, DETAIL_FEATURE, POPULARITY_FEATURE = 1.9, 0.8, 0.4, 0.3  # factors in the features
MOST_FEATURES = 32  # features of largest variance that are kept; the others change no AUC by 0.0005
