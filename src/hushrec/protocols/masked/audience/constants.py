"""The numbers of model `audience` that were chosen once, for all data, on validation parts: public."""

# Descriptions of people: Σ columns / (h + offset) and log h − the usual, whitened, K numbers of norm at most limit · √K
PROFILE_OFFSET = 5.0
USUAL_LOG_PROFILE = 4.3
DESCRIPTION_LIMIT = 2.0
LEAST_VARIANCE = 0.01  # of a description in any direction, before it is whitened
TASTE_SPREAD = 4.0  # of taste columns in the first pass
LATER_TASTE_SPREAD = 2.0  # in the second, beside audiences of mean square 1
POPULARITY_SPREAD = 0.7  # of log-popularity in the second
FEWEST_COLUMNS = 8  # of the first pass: where taste columns are fewer, random signs of the items stand in

# Uploads
WEIGHT_OFFSET, WEIGHT_POWER = 20.0, 0.4  # an item with n people weighs (n + 20)^(−0.4)
COUNT_WEIGHT_POWER = 0.7  # in counts: where a first count says that many met an item, the second asks less of it

# Scores
AUDIENCE_WEIGHT, DENSITY_WEIGHT, PREFERENCE_WEIGHT = 0.15, 0.6, 0.5  # β, γ, θ
CROWD_ITEMS = 5.0  # c, items of the crowd that every profile starts with
KERNEL_LENGTH = 0.5  # of the three parts of an item's place
AUDIENCE_PLACE, TASTE_PLACE, POPULARITY_PLACE = 1.2, 1.0, 0.3  # their spreads; taste columns have total variance 1
AUDIENCE_FEATURE, TASTE_FEATURE, DETAIL_FEATURE, POPULARITY_FEATURE = 1.9, 0.8, 0.4, 0.3  # spreads in a preference
MOST_FEATURES = 32  # of a preference, those of largest variance: the others change no AUC by 0.0005
