"""The attention debate as experiments: does attention explain a model's decisions? (The verb is `audit`.)"""
