"""Linear RNNs with gates of one number a head and step: mLSTM, Retention, Simple GLA, Lightning attention, Mamba 2."""
